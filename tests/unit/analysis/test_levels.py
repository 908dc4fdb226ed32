"""What was watched as it happened: at once, at a later harm, in a script that trains nothing."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Activations, Finished, Harm, Looked, Site


def at_module(step, make):
    facts = {"level": "module", "bad_modules": ["head", ""]}
    return Looked(
        "found", "watch", step, phase="forward", source="module", site=Site("stem", "Stem"),
        inputs=(make(),), outputs=(make(nan=3),), facts=facts,
    )  # fmt: skip


def test_what_was_seen_live_is_observed(by_hand):
    look = replace(by_hand.found(5), method="watch")
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert (verdict.confidence, verdict.reproduced) == ("observed", None)
    assert verdict.origin.op == "aten.log.default"
    assert any("every op was watched" in text for text in verdict.evidence)


def test_a_module_is_named_with_what_followed(by_hand):
    verdict = analyse(
        by_hand.run(by_hand.rank(0, by_hand.loss(5), at_module(5, by_hand.fact), world=1), world=1)
    ).verdict
    assert (verdict.confidence, verdict.origin.module, verdict.origin.op) == ("observed", "stem", None)
    assert verdict.summary == "NaN born on rank 0 at step 5 in forward of stem"
    assert any("head, the root module" in text for text in verdict.evidence)


def finite(step):
    return Looked("finite", "replay", step, reason="run again, the step is finite on this rank")


def test_a_later_look_shows_the_place_of_the_first_harm(by_hand):
    live = replace(by_hand.found(9), method="watch")
    verdict = analyse(
        by_hand.run(by_hand.rank(0, by_hand.loss(5), finite(5), by_hand.loss(9), live, world=1), world=1)
    ).verdict
    assert verdict.origin.step == 5
    assert (verdict.origin.op, verdict.origin.line) == ("aten.log.default", 12)
    assert verdict.confidence == "observed"
    assert "at step 5, and again at step 9" in verdict.summary
    assert any("at step 9" in text and "inferred" in text for text in verdict.evidence)
    assert verdict.cause != "hardware_corruption"


def test_a_loss_that_was_infinite_need_not_have_broken_where_it_came_to_be_nan_later(by_hand):
    live = replace(by_hand.found(9), method="watch")
    first = by_hand.loss(5, value=math.inf)
    verdict = analyse(by_hand.run(by_hand.rank(0, first, finite(5), by_hand.loss(9), live, world=1), world=1)).verdict
    told = (
        "+Inf loss on rank 0 at step 5, where is not known; at step 9 a loss of NaN: -Inf born on that rank in forward"
    )
    assert verdict.summary.startswith(told)
    assert any("step 5 need not have broken in the same place" in text for text in verdict.evidence)


def test_what_another_rank_saw_later_says_nothing_of_this_one(by_hand):
    live = replace(by_hand.found(9), method="watch")
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), finite(5)), by_hand.rank(1, live)))
    assert report.verdict.origin.op is None


@pytest.mark.parametrize("spoilt", [True, False])
def test_weights_that_the_first_harm_has_spoilt_do_not_show_its_place(spoilt, by_hand):
    live = replace(by_hand.found(6), method="watch", source="parameter")
    events = [by_hand.loss(5), finite(5), *([by_hand.state(5)] if spoilt else []), by_hand.loss(6), live]
    verdict = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1)).verdict
    assert verdict.origin.step == 5
    assert (verdict.origin.line is None) is spoilt


def test_an_output_is_told_as_one(by_hand):
    bad = by_hand.fact("output of Net", nan=2)
    harm = Harm("output", 6, "forward", (bad,), 1, 1)
    report = analyse(by_hand.run(by_hand.rank(0, harm, Finished(8), world=1), world=1))
    assert report.verdict.anomaly
    assert report.verdict.summary == "NaN in the output of Net on rank 0 at step 6"
    assert [one.slug for one in report.findings] == ["nonfinite_output"]


def test_a_watch_that_saw_no_origin_is_a_note(by_hand):
    missed = Looked("failed", "watch", 5, reason="none of the ops wrote it")
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), missed, world=1), world=1))
    assert any("was watched, but its origin was not seen" in note for note in report.notes)
    assert not any("run again" in note for note in report.notes)


def test_what_was_watched_to_the_end_of_the_run_is_the_last_of_its_steps(by_hand):
    missed = Looked("failed", "watch", 8, reason="none of the ops wrote it")
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), missed, Finished(8), world=1), world=1))
    (told,) = (note for note in report.notes if "was watched" in note)
    assert "step 7 was watched" in told


def test_the_newest_maxima_are_in_the_report(by_hand):
    maxima = [Activations((step,), ("fc",), ("float32",), ((1.0,),)) for step in (1, 2)]
    report = analyse(by_hand.run(by_hand.rank(0, *maxima, world=1), world=1))
    assert report.activations["0"].step == (2,)
