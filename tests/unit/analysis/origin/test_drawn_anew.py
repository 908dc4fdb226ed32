"""Bad losses whose weights the script gave up are told, and are no anomaly; with other harm they are harm."""

import math

from nandiag.analysis import analyse
from nandiag.events import Skipped
from tests.unit.analysis.conftest import ended, found, loss, rank, run, state

GIVEN_UP = Skipped(1, None, 1, 1, math.inf, by="script", of="weights drawn anew", every=True)


def of(*events):
    return analyse(run(rank(0, *events, steps=9), ends=[ended(0, 0)]))


def test_they_are_told_with_the_place_of_the_first():
    report = of(loss(1), found(1, source="op", phase="forward"), GIVEN_UP)
    assert not report.verdict.anomaly
    assert report.left_out.origin.line == 12
    (told,) = [one.text for one in report.findings if one.slug == "script_skip"]
    assert told == (
        "What 1 update on a +Inf loss had made was given up by the script, the first at step 1, on rank 0: it went on"
        " with other weights."
    )
    assert not {"nonfinite_loss", "went_on"} & {one.slug for one in report.findings}


def test_weights_that_went_bad_are_an_anomaly_all_the_same():
    report = of(loss(1), found(1, source="op", phase="forward"), state(4), GIVEN_UP)
    assert (report.verdict.anomaly, report.verdict.origin.step) == (True, 1)


def test_so_are_losses_of_which_it_is_not_said():
    assert of(loss(1), found(1, source="op", phase="forward")).verdict.anomaly


POINT = Skipped(0, None, 4, 4, math.nan, by="script", of="searched point", every=True)


def test_a_point_of_a_search_that_found_back_is_told_alike():
    report = of(loss(0), found(0, source="op", phase="forward"), loss(1), POINT)
    assert not report.verdict.anomaly
    assert report.left_out.origin.line == 12
    (told,) = [one.text for one in report.findings if one.slug == "script_skip"]
    assert told == (
        "The optimizer's line search took a point where the loss is NaN, at step 0 on rank 0, and found back: the"
        " losses behind it were finite."
    )


def test_points_that_were_only_tried_are_not_told():
    report = of(POINT)
    assert (report.verdict.anomaly, report.left_out) == (False, None)
    assert "script_skip" not in {one.slug for one in report.findings}
