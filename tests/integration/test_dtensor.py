"""`detect_anomaly(check_nan=True)` on DTensor in real gloo processes: under `nandiag run`, and without the launcher."""

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

HERE = Path(__file__).parent / "dtensor"
NANDIAG = ["nandiag", "run"]
TORCHRUN = ["torchrun"]


@pytest.fixture(scope="module")
def launch(launch, tmp_path_factory):
    """Run a script of the folder `dtensor` and return its JSON lines by case."""

    def start(command, script, ranks, *words, timeout=150):
        folder = tmp_path_factory.mktemp("run")
        done = launch(*command, "--nproc-per-node", ranks, HERE / script, *words, cwd=folder, timeout=timeout)
        done.folder = folder
        told = defaultdict(list)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                word = json.loads(line)
                told[word["case"]].append(word)
        return done, told

    return start


def ended_in_order(done, told, ranks):
    assert done.returncode == 0, done.stderr
    assert len(told["end"]) == ranks, done.stderr


def exactly_the_owner_raises(told):
    told = {case: words for case, words in told.items() if case != "end"}
    for case, words in told.items():
        for word in words:
            where = f"{case}, NaN on rank {word['bad']}, rank {word['rank']}: {word['raised']}"
            assert bool(word["raised"]) is word["holds"], where
            assert "returned nan values" in word["raised"] or not word["holds"], where
            assert word["added"] == 0, where
    return told


@pytest.mark.parametrize("level", ["step", pytest.param("op", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_exactly_the_owner_of_a_nan_raises_and_no_collective_is_added(launch, ranks, level):
    done, told = launch([*NANDIAG, "--level", level], "placements.py", ranks)
    ended_in_order(done, told, ranks)
    assert len(exactly_the_owner_raises(told)) == {2: 9, 4: 21}[ranks]
    assert sum(word["holds"] for words in told.values() for word in words if "holds" in word) > 9


@pytest.mark.slow
def test_the_smallest_backward_passes_with_every_op_watched(launch):
    ours, _ = launch([*NANDIAG, "--level", "op"], "seed.py", 2)
    assert ours.returncode == 0, ours.stderr
    assert sorted(ours.stdout.splitlines()) == ["rank 0 gradient 32", "rank 1 gradient 32"]


def test_the_smallest_backward_passes_here_and_fails_under_torchrun(launch):
    ours, _ = launch(NANDIAG, "seed.py", 2)
    assert ours.returncode == 0, ours.stderr
    assert sorted(ours.stdout.splitlines()) == ["rank 0 gradient 32", "rank 1 gradient 32"]
    theirs, _ = launch(TORCHRUN, "seed.py", 1)
    if theirs.returncode == 0:
        pytest.skip("the installed torch has mended detect_anomaly on DTensor itself")
    assert "_is_any_true" in theirs.stderr


OLD = torch.__version__.startswith("2.6.")
LINE = {"compile": "# the call"}


def clean_is_silent_and_the_planted_line_is_named(told):
    for case, words in told.items():
        for word in words:
            if case == "end":
                continue
            where = f"{case}, faulty {word['faulty']}, rank {word['rank']}: {word['raised']}"
            # The second pipeline stage is through with its backward when the first one meets the fault.
            raises = word["faulty"] and (case, word["rank"]) != ("pipeline", 1)
            assert bool(word["raised"]) is raises, where
            if raises:
                assert "returned nan values" in word["raised"], where
                assert LINE.get(case, "# the planted line") in word["forward"], where


@pytest.mark.skipif(OLD, reason="torch 2.6 has no FSDP2 without an accelerator")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_parallelism_is_silent_when_clean_and_names_the_line_of_a_fault(launch, ranks):
    done, told = launch(NANDIAG, "parallelisms.py", ranks)
    ended_in_order(done, told, ranks)
    assert len(told) == {2: 11, 4: 3}[ranks]
    assert all(len(words) == 2 * ranks for case, words in told.items() if case != "end")
    clean_is_silent_and_the_planted_line_is_named(told)


@pytest.fixture(scope="module")
def truths(launch):
    done, told = launch(NANDIAG, "truths.py", 2)
    ended_in_order(done, told, 2)
    return told


def test_a_scripts_own_questions_are_answered_for_all_ranks(truths):
    assert {word["answer"] for case in ("any", "isnan-any") for word in truths[case]} == {True}
    assert {word["answer"] for word in truths["all"]} == {False}
    assert {word["answer"] for word in truths["check"]} == {"RuntimeError"}
    assert len(truths["all"]) == 6


def test_isnan_keeps_torchs_placements_and_collectives(truths):
    assert len(truths["isnan"]) == 6
    for word in truths["isnan"]:
        assert [word["placements"], word["collectives"]] == word["like"], word


@pytest.mark.skipif(OLD, reason="torch 2.6 asks each rank for its own part")
def test_arguments_of_a_distribution_are_validated_on_all_ranks(truths):
    assert [word["answer"] for word in truths["distribution"]] == ["ValueError"] * 2
    assert [word["answer"] for word in truths["distribution-good"]] == [[4, 2]] * 2


def test_python_code_inside_a_backward_is_not_taken_for_the_engine(truths):
    with_check, without = (
        [(word["function"], word["hook"]) for word in truths["inside"] if word["check"] is check]
        for check in (True, False)
    )
    assert with_check == without
    assert with_check[0][1] == ["DTensor"]


def test_a_backward_formula_that_asks_isnan_itself_gets_torchs_answer(truths):
    assert [(word["error"], word["total"]) for word in truths["formula"]] == [(None, 2.0)] * 4


def test_a_dispatch_mode_between_the_engine_and_dtensor_changes_nothing(truths):
    assert {word["rank"]: word["answer"] for word in truths["mode"]} == {0: None, 1: "RuntimeError"}


@pytest.mark.skipif(OLD, reason="torch 2.6 has no answer for nested tensors")
def test_nested_tensors_are_checked_as_before(truths):
    assert {word["answer"] for word in truths["nested"]} == {None}
    assert {word["answer"] for word in truths["nested-bad"]} == {"RuntimeError"}


def test_ranks_may_run_different_numbers_of_backwards(truths):
    for word in truths["backwards"]:
        assert word["answer"] == 2 * word["turn"] + 1
    assert len(truths["backwards"]) == 6


def test_an_exception_that_leaves_one_rank_ends_the_run_and_the_report_blames_its_owner(launch):
    done, _ = launch(NANDIAG, "owner.py", 2)
    ended = time.time()
    assert done.returncode == 1
    assert "finished" not in done.stdout
    folder = next((done.folder / "nandiag_logs").iterdir())
    (log,) = (folder / "ranks").glob("r00001-*.jsonl")
    raised = [word for line in log.read_text().splitlines() if (word := json.loads(line))["kind"] == "raised"]
    assert ended - raised[0]["time"] < 20
    report = json.loads((folder / "report.json").read_text())
    origin = report["verdict"]["origin"]
    assert (report["verdict"]["anomaly"], report["verdict"]["confidence"]) == (True, "reproduced")
    assert (origin["ranks"], origin["step"], origin["phase"], origin["node"]) == ([1], 3, "backward", "SqrtBackward0")
    assert origin["source"].endswith("# the line to blame")
    assert Path(origin["file"]).name == "owner.py"
    assert {rank: state["state"] for rank, state in report["ranks"].items()} == {"0": "victim", "1": "raised"}
    assert report["verdict"]["cause"] == "singular_gradient", done.stderr
