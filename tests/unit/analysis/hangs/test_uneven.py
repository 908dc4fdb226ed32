"""Ranks with fewer batches than others meet these behind their own loop: that is told with the step."""

from nandiag.analysis import analyse
from nandiag.events import Raised
from tests.unit.analysis.hangs.made_up import TIMEOUT, call, ended, rank, run, stands


def looped(steps):
    return [one for step in range(steps) for one in (call("all_gather", 22, step=step), call(line=33, step=step))]


def hang_of(*last, step=6, seen=6):
    logs = [
        rank(
            number, stands(*looped(seen), one, why="raised", step=step), TIMEOUT if number else Raised("E", "x", "", 1)
        )
        for number, one in enumerate(last)
    ]
    return analyse(run(*logs, ends=[ended(0, 1), ended(1, 1)])).hang


def test_a_rank_that_left_its_loop_is_told_with_its_steps():
    hang = hang_of(call("all_gather", 22, state="raised", step=6), call(line=38, state="raised", step=6))
    assert hang.slug == "collective_mismatch"
    assert hang.step == 6
    assert any(
        one.startswith("Rank 1 had made 6 steps and came to ")
        and "train.py:38" in one
        and "rank 0 made in step 6 a call that it had made in each of its own: it has left its loop" in one
        for one in hang.evidence
    ), hang.evidence
    assert hang.help[0].startswith("Where rank 1 had fewer batches: give all ranks equally many")
    assert "Join" not in hang.help[0]


def test_a_call_of_the_loop_itself_is_none_behind_it():
    hang = hang_of(call("all_gather", 22, state="raised", step=6), call(line=33, state="raised", step=6))
    assert not any("left its loop" in one for one in (*hang.evidence, *hang.help))


def test_steps_that_differ_are_told():
    hang = hang_of(call("all_gather", 22, state="raised", step=6), call(line=33, state="raised", step=5))
    assert "The calls that met are of step 5 on rank 1, step 6 on rank 0." in hang.evidence
