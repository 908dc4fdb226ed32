"""Sharded models without an optimizer: what breaks their loss has its line all the same."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("written.py")
SLOW = pytest.mark.slow
WAYS = [
    ("alone", "fsdp2"),
    ("one", "counted"),  # its loss was bad before it came to ask the others: it waits for nobody
    *(pytest.param(how, way, marks=SLOW) for way in ("fsdp1", "tp") for how in ("all", "one", "alone")),
    pytest.param("all", "fsdp2", marks=SLOW),
    pytest.param("one", "fsdp2", marks=SLOW),
]


@pytest.mark.parametrize(("how", "way"), WAYS)
def test_a_loss_that_breaks_has_its_line(how, way, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, how, way)
    origin = json.loads(file.read_text())["verdict"]["origin"]
    ranks = [0, 1] if how == "all" or way == "tp" else [1]
    assert (origin["op"], origin["phase"], origin["function"]) == ("aten.log.default", "loss", "loss_of"), done.stderr
    assert (origin["kind"], origin["step"], origin["ranks"]) == ("inf", 3, ranks), done.stderr
    assert origin["line"] == (51 if how == "alone" else 52), done.stderr
    went_on = done.stdout.count("went on to the end")
    assert (done.returncode, went_on) == ((0, 2) if how == "alone" else (3, 0)), done.stderr
