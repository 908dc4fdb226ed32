"""That a run went on with bad values, and why."""

import math
from dataclasses import replace

from nandiag.analysis import analyse
from nandiag.events import Finished, Next, Site, Skipped, Stopping


def went_on(by_hand, *events, ends=None, **rest):
    """The report on one rank that saw ``events`` and came to its end."""
    ends = [by_hand.ended(0, 0)] if ends is None else ends
    return analyse(by_hand.run(by_hand.rank(0, *events, world=1, **rest), ends=ends, world=1))


def slugs(report):
    return [one.slug for one in report.findings]


def test_a_run_that_went_on_says_why(by_hand):
    (note,) = [one for one in went_on(by_hand, by_hand.loss(5)).findings if one.slug == "went_on"]
    assert note.text == "No gradient or weight was seen bad at an update, and so the run was not stopped."
    (note,) = [one for one in went_on(by_hand, by_hand.loss(5), by_hand.gradient(5)).findings if one.slug == "went_on"]
    assert note.text == "No weight was seen bad, and so the run was not stopped."


def test_a_run_that_ended_before_the_update_of_its_bad_loss_says_so(by_hand):
    ended = "The run ended before the update of step 5: no gradient or weight was seen bad until then."
    for steps, text in (
        (5, ended),
        (6, "No gradient or weight was seen bad at an update, and so the run was not stopped."),
    ):
        (note,) = [one for one in went_on(by_hand, by_hand.loss(5), by_hand.finished(steps)).findings
                   if one.slug == "went_on"]  # fmt: skip
        assert note.text == text


def test_a_run_whose_outputs_or_buffers_alone_were_bad_says_why_it_went_on(by_hand):
    trained = "No gradient or weight was seen bad at an update, and so the run was not stopped."
    for what, text in (("output", "No update was made of it, and so the run was not stopped."), ("buffer", trained)):
        harm = by_hand.state(5, "norm.running_mean", what=what, phase="forward")
        (note,) = [one for one in went_on(by_hand, harm, by_hand.finished(9)).findings if one.slug == "went_on"]
        assert note.text == text
    state = by_hand.state(5, what="optimizer_state")
    assert "went_on" not in slugs(went_on(by_hand, by_hand.loss(5), state))


def test_the_steps_of_an_optimizer_that_is_behind_another_are_its_own(by_hand):
    """A student is trained behind its teacher, whose updates the step counts."""
    harm = replace(by_hand.loss(60), own_step=24, optimizer="Adam", names={"optimizer": "sopt"})
    report = went_on(by_hand, harm, Finished(60, bad_losses=(35, 24, 59, 1)))
    told = {one.slug: one.text for one in report.findings}
    assert told["went_on"] == "No gradient or weight was seen bad at an update, and so the run was not stopped."
    assert told["nonfinite_again"] == (
        "The loss of rank 0 was bad in 35 of the steps 24 to 59 of sopt: the first of them is told."
    )


def test_bad_losses_of_optimizers_that_stand_apart_are_counted_without_their_steps(by_hand):
    report = went_on(by_hand, by_hand.loss(60), Finished(80, bad_losses=(35, 60, 61)))
    (text,) = [one.text for one in report.findings if one.slug == "nonfinite_again"]
    assert text == "The loss of rank 0 was bad 35 times from step 60 on: the first of them is told."


def test_a_bad_loss_that_is_multiplied_by_0_is_told_to_be_bad_still(by_hand):
    told = "The script multiplies this loss by 0 before backward() (train.py:18): NaN times 0 is NaN"
    for factor, left_out in ((0.0, True), (0.5, True), (0.0, False)):
        looked = by_hand.found(5)
        known = {"loss_factor": factor, "loss_factor_at": ["/a/train.py", 18]}
        again = replace(by_hand.finite(5), facts={**known, **({"loss_left_out": True} if left_out else {})})
        report = went_on(by_hand, by_hand.loss(5), looked, Next(0, again))
        assert any(one.startswith(told) for one in report.verdict.evidence) is (factor == 0.0 and left_out)


def test_a_run_with_bad_weights_or_a_stop_or_a_failure_did_not_go_on(by_hand):
    stop = Stopping(5, "auto", "stop", "non-finite gradient")
    assert "went_on" not in slugs(went_on(by_hand, by_hand.loss(5), by_hand.state(5)))
    assert "went_on" not in slugs(went_on(by_hand, by_hand.loss(5), stop))
    assert "went_on" not in slugs(went_on(by_hand, by_hand.loss(5), ends=[by_hand.ended(0, 1)]))
    assert "went_on" not in slugs(went_on(by_hand))


def test_a_skip_for_a_nan_loss_is_no_search_of_a_scale(by_hand):
    search = [Skipped(0, 65536.0 / 2**n, n + 1, n + 1, 0.7) for n in range(3)]
    report = went_on(by_hand, *search, Skipped(22, 8192.0, 1, 4, math.nan), by_hand.loss(22))
    told = {one.slug: one.text for one in report.findings}
    assert told["loss_scale_skip"].startswith("GradScaler left out 3 steps in search of its scale")
    assert told["loss_skip"] == "GradScaler left out 1 step with a NaN loss, the first at step 22."


def test_a_collapse_by_nan_losses_is_one_all_the_same(by_hand):
    skips = [Skipped(22, 2.0 ** (2 - n), n + 1, n + 1, math.nan) for n in range(8)]
    report = went_on(by_hand, *skips[:1], by_hand.loss(22), *skips[1:])
    assert "loss_scale_collapse" in slugs(report)
    assert report.verdict.cause != "loss_scale_collapse"


def test_the_step_tells_of_updates_that_it_does_not_count(by_hand):
    search = [Skipped(0, 65536.0 / 2**n, n + 1, n + 1, 0.7) for n in range(11)]
    own = Skipped(22, 16.0, 1, 12, math.nan)
    after = Skipped(22, 8.0, 2, 13, math.nan)
    report = went_on(by_hand, *search, own, by_hand.loss(22), after)
    assert report.verdict.summary == "NaN loss on rank 0 at step 22 (11 updates were skipped before)"
    left_out = Stopping(3, "skip", "skip", "non-finite loss")
    report = went_on(by_hand, left_out, by_hand.loss(22))
    assert report.verdict.summary == "NaN loss on rank 0 at step 22 (1 update was skipped before)"


def test_a_child_known_by_its_number_is_called_a_module(by_hand):
    site = Site("0", "Standardize", "aten.div.Tensor")
    report = went_on(by_hand, by_hand.loss(5), by_hand.found(5, site=site))
    assert report.verdict.summary == "-Inf born on rank 0 at step 5 in forward of module 0 (Standardize)"


def test_nothing_is_said_of_the_machine_of_a_rank_that_left_no_word(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(5), by_hand.finite(5)))
    report = analyse(record)
    assert report.verdict.origin.rank == 1
    assert (report.verdict.origin.host, report.verdict.origin.device) == (None, None)
    assert sum("ran the step again alone and came out finite" in text for text in report.verdict.evidence) == 1


def test_what_stays_bad_from_turn_to_turn_is_told_of_a_loop_that_passes_over_all(by_hand):
    look = by_hand.found(24)
    look = replace(look, facts={**look.facts, "kept_bad": ["a/rewards/normaliser.py:9", "a/rewards/normaliser.py:10"]})
    skip = Skipped(24, None, 36, 36, math.nan, by="script", look=look, of="unused loss", last=True)
    told = analyse(by_hand.run(by_hand.rank(0, skip, world=1), ends=[by_hand.ended(0, 0)], world=1)).left_out.evidence
    assert any(text.startswith("What is written at normaliser.py:9, normaliser.py:10 stays") for text in told), told


def test_what_was_written_behind_an_update_is_told_with_what_was_left_out_before_that_one(by_hand):
    """Of those behind it nobody knows which came first: the write, or they, as where it made all losses bad."""
    written = replace(by_hand.state(21, since=20), behind=True)
    after = replace(Skipped(21, None, 19, 19, math.inf, by="script", of="loss"), last=True)
    assert "skipped before" not in went_on(by_hand, after, written).verdict.summary
    search = [Skipped(0, 65536.0 / 2**n, n + 1, n + 1, 0.7) for n in range(2)]
    report = went_on(by_hand, *search, after, Stopping(21, "skip", "skip", "non-finite loss"), written)
    assert report.verdict.summary.endswith("(2 updates were skipped before)")
