"""Ranks that part because one left out a step by itself: that is told, with where its loss was made bad."""

import ast
import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Looked, Site, Skipped
from tests.unit.analysis.hangs.made_up import CLOSED, TIMEOUT, call, ended, rank, run, stands


def skip(step, *, line=28, of="loss"):
    site = Site(op="aten.log.default", file="/home/u/train.py", line=line, source="y = torch.log(x)")
    look = Looked("found", "replay", step, phase="forward", source="op", site=site)
    return Skipped(step=step, scale=None, in_a_row=1, total=1, loss=math.nan, by="script", of=of, look=look)


def parted(*skips, others=()):
    """Under DDP: an all_reduce a step, then a barrier; rank 1 left out the steps of ``skips``."""
    gone = {one.step for one in skips}
    calls = [call(line=32, step=step) for step in range(7)]
    own = [one for one in calls if one.step not in gone]
    logs = (
        rank(0, stands(*calls[:-1], replace(calls[-1], state="raised"), step=7), *others, TIMEOUT),
        rank(1, stands(*own, call("barrier", 36, "raised", None, 7), step=7), *skips, CLOSED),
    )
    return analyse(run(*logs, ends=[ended(0, 1), ended(1, 1)]))


def test_the_rank_that_left_out_a_step_is_named_with_the_line_of_its_loss():
    hang = parted(skip(4)).hang
    first = hang.evidence[0]
    assert first.startswith("Rank 1 made no step of its NaN loss at step 4 (train.py:28). Unless rank 0 left")
    assert "decide together" in hang.help[0]
    assert len(hang.help) == 1 + len(parted().hang.help)


@pytest.mark.parametrize("others", [(skip(4),), ()])
def test_a_step_that_all_left_out_or_none_parts_nobody(others):
    hang = parted(*others, others=others).hang
    assert hang is None or not any("made no step" in text for text in hang.evidence)


def test_a_search_of_a_loss_scale_is_not_what_parted_them():
    hang = parted(skip(4, of="scaled gradient")).hang
    assert not any("made no step" in text for text in hang.evidence)


@pytest.mark.parametrize(
    ("of", "name", "when"), [("loss", "loss", "before the backward:"), ("gradient norm", "norm", "before the step:")]
)
def test_what_the_ranks_are_to_decide_together_can_be_pasted(of, name, when):
    told = parted(skip(4, of=of)).hang.help[0]
    first, _, then = told.partition(when)[2].partition(" - and in a line of its own behind that: ")
    assert [type(one).__name__ for one in ast.parse(first.strip()).body] == ["Assign", "Expr"]
    assert f"torch.isfinite({name})" in first
    assert ast.parse(f"while True:\n {then}")
