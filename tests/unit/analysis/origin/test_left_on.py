"""A loss that a script asked of, and ended on the answer: harm where it fails, and the line is where it was asked."""

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.first import first_look
from nandiag.events import Finished, Looked, Site
from tests.unit.analysis.conftest import ended, finite, found, loss, rank, run

WHY = "the model communicates, and not every rank takes part in this replay"
HERE = Site(file="train.py", line=7, function="train", source="if torch.isnan(loss):", column=(4, 20))


def left(step=3, outcome="refused"):
    return loss(step, left_on=True), Looked(outcome, "replay", step, phase="loss", site=HERE, reason=WHY)


def test_it_is_harm_where_the_rank_failed_and_the_line_is_no_origin_of_it():
    verdict = analyse(run(rank(0, *left(), world=1), ends=[ended(0, 3)], world=1)).verdict
    origin = verdict.origin
    assert (verdict.anomaly, verdict.confidence) == (True, "observed")
    assert (origin.ranks, origin.step, origin.op, origin.file, origin.line) == ((0,), 3, None, "train.py", 7)
    assert verdict.cause == "unknown"
    assert any("asked whether it is finite" in text and "not known" in text for text in verdict.evidence)


def test_a_line_where_the_script_asked_nothing_is_not_told_to_be_one_where_it_did():
    """A step that is finite again may show the line of an exchange of gradients."""
    exchanged = Looked("finite", "replay", 3, site=HERE, facts={"collective": "all_reduce", "by": "script"})
    verdict = analyse(run(rank(0, loss(3), exchanged), ends=[ended(0, 3)])).verdict
    assert not any("asked whether it is finite" in text for text in verdict.evidence)


@pytest.mark.parametrize("ends", [[ended(0, 0)], [], None])
def test_it_is_none_where_the_rank_left_in_order_or_nobody_knows_how(ends):
    report = analyse(run(rank(0, *left(), Finished(steps=3), world=1), ends=ends, world=1))
    assert not report.verdict.anomaly
    assert not any(WHY in note for note in report.notes)


def test_it_is_harm_where_the_rank_was_started_again():
    logs = rank(0, *left(), world=1), rank(0, Finished(steps=9), world=1, attempt=1)
    assert analyse(run(*logs, ends=[ended(0, 0)], world=1)).verdict.anomaly


def test_what_a_run_found_otherwise_stays_though_it_left_in_order():
    events = *left(1), loss(5), found(5, site=HERE)
    verdict = analyse(run(rank(0, *events, world=1), ends=[ended(0, 0)], world=1)).verdict
    assert verdict.origin.step == 5


def test_the_rank_that_found_the_line_goes_before_those_that_only_asked():
    logs = rank(0, *left()), rank(1, loss(3), found(3, source="op", phase="forward"))
    verdict = analyse(run(*logs, ends=[ended(0, 3), ended(1, 3)])).verdict
    assert (verdict.origin.ranks, verdict.confidence) == ((1,), "reproduced")


def test_it_tells_nothing_while_the_run_goes_on():
    assert first_look([rank(0, *left())]) is None


def test_a_rank_whose_step_was_finite_when_it_was_run_again_asked_of_what_it_had_received():
    logs = rank(0, loss(3, left_on=True), finite(3)), rank(1, loss(3), found(3, source="op", phase="forward"))
    verdict = analyse(run(*logs, ends=[ended(0, 3), ended(1, 3)])).verdict
    assert verdict.origin.ranks == (1,)
