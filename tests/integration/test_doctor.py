"""``nandiag doctor`` as a user runs it: real ranks, real collectives, a real NaN found by a real ``nandiag run``."""

import json

import pytest
import torch

pytestmark = pytest.mark.integration


def test_two_gloo_ranks_pass_and_the_planted_nan_is_found(nandiag, tmp_path):
    words = ("doctor", "--nproc", 2, "--backend", "gloo", "--json", tmp_path / "d.json")
    done = nandiag(*words, cwd=tmp_path, timeout=170)
    checks = {check["name"]: check for check in json.loads((tmp_path / "d.json").read_text())["checks"]}
    for name in ("all_reduce", "all_gather", "all_to_all", "broadcast", "matrix products"):
        assert checks[name]["state"] == "ok", checks[name]
    assert checks["planted NaN"]["state"] == "ok", checks["planted NaN"]
    assert "division_by_zero at rank 1, step 3, planted.py:" in checks["planted NaN"]["seen"]
    assert done.returncode == (3 if any(check["state"] == "wrong" for check in checks.values()) else 0)
    assert "For a bug report" in done.stdout
    assert f"torch: {torch.__version__}" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "d.json"]


@pytest.mark.parametrize("words", [("--nproc", 0), ("--backend", "smoke"), ("--nnodes", 2)])
def test_words_that_do_not_fit_end_with_2(nandiag, words):
    done = nandiag("doctor", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
