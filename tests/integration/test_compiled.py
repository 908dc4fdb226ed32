"""Scripts that torch compiles: it compiles what is theirs, and nothing of ours."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "runtime" / "compiled.py"


def test_our_hooks_are_not_compiled(nandiag, launch, tmp_path):
    """Dynamo warned of them, and compiled them anew in each step until it gave up: steps took seconds."""
    done = nandiag("run", "--nproc-per-node", 1, "--log-dir", tmp_path, SCRIPT, -1)
    plain = launch("torchrun", "--nproc-per-node", 1, SCRIPT, -1)
    assert (done.stdout, done.returncode) == (plain.stdout, 0), done.stderr
    told = [line for line in done.stderr.splitlines() if "_dynamo" in line]
    assert not any("nandiag" in line for line in told), done.stderr
    assert len(told) <= len([line for line in plain.stderr.splitlines() if "_dynamo" in line]), done.stderr


def test_what_breaks_in_a_compiled_function_has_its_line(nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 1, "--log-dir", tmp_path, "--json", file, SCRIPT, 7)
    origin = json.loads(file.read_text())["verdict"]["origin"]
    assert (origin["step"], origin["op"], origin["function"]) == (7, "aten.div.Tensor", "loss_of"), done.stderr
    assert done.returncode == 3, done.stderr
