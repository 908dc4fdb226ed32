"""The course of a run before its origin decides what is to blame."""

import math
import re
from dataclasses import replace

import pytest

from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.causes.facts import POSSIBLE
from nandiag.analysis.report import Origin
from nandiag.events import Compared, Harm, History, Looked
from tests.unit.analysis.causing import slugs


def history(norms, rates):
    steps = tuple(range(len(norms)))
    empty = (None,) * len(norms)
    return History(steps, empty, tuple(norms), tuple(rates), empty)


def at_end(past, phase="forward"):
    return Facts(Origin("nan", 0, (0,), len(past.step) - 1, phase=phase), "loss", history=past)


def test_a_learning_rate_that_is_no_number():
    assert slugs(at_end(history([1.0] * 4, [0.1, 0.1, math.nan, 0.1])))[0] == "lr_invalid"
    assert slugs(at_end(history([1.0] * 4, [0.1, -0.1, 0.1, 0.1])))[0] == "lr_invalid"


@pytest.mark.parametrize("made", [False, True])
def test_the_mend_of_the_line_that_made_a_bad_rate_comes_first(made):
    facts = at_end(history([1.0] * 4, [0.1, 0.1, 0.1, math.nan]))
    look = Looked("found", "replay", facts.origin.step, source="op", facts={"number": made})
    story = explain(replace(facts, look=look, basis="look"))[0]
    assert (story.slug, story.follows) == ("lr_invalid", made)


def test_beyond_the_end_of_a_schedule_its_length_comes_first_and_no_bound():
    """What is below 0 under a root is so behind the last step: 0 in its place ends the learning."""
    facts = at_end(history([1.0] * 4, [0.1, 0.1, 0.1, math.nan]))
    known = {"number": True, "numpy": "invalid value encountered in sqrt"}
    look = Looked("found", "replay", facts.origin.step, source="op", facts=known)
    assert not explain(replace(facts, look=look, basis="look"))[0].follows


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("s = LambdaLR(opt, lambda s: 1 - s / n)", "s = LambdaLR(opt, lambda s: max(0.0, 1 - s / n))"),
        ("s = LambdaLR(opt, lambda s: (1 - s / n) ** p)", "s = LambdaLR(opt, lambda s: max(0.0, 1 - s / n) ** p)"),
        ("s = LambdaLR(opt, lr_lambda=lambda t: c[t], last_epoch=3)",
         "s = LambdaLR(opt, lr_lambda=lambda t: max(0.0, c[t]), last_epoch=3)"),
        ("s = LambdaLR(opt, decay)", None),
        ("s = LambdaLR(opt, [lambda s: 1 - s, lambda s: 2 - s])", None),
    ],
)  # fmt: skip
def test_a_rate_below_0_is_told_with_the_line_that_makes_its_schedule(line, code):
    facts = at_end(history([1.0] * 4, [0.1, 0.0, -0.1, -0.2]))
    compared = Compared(3, rate_set_at=(f"train.py:13: {line}",))
    (told,) = explain(replace(facts, compared=compared))[0].suggestions
    assert told.code == code
    assert "train.py:13" in told.text
    assert ("nothing is learned" in told.text) is (code is not None)


def test_a_power_of_what_is_below_0_is_bounded_below_the_power():
    facts = at_end(history([1.0] * 4, [0.1, 0.1, 0.1, math.nan]))
    compared = Compared(3, rate_set_at=("train.py:13: s = LambdaLR(opt, lambda s: a * (1 - s) ** 0.9 + b)",))
    (told,) = explain(replace(facts, compared=compared))[0].suggestions
    assert told.code == "s = LambdaLR(opt, lambda s: a * max(0.0, 1 - s) ** 0.9 + b)"


GREW = history([1.0] * 8 + [30.0 * 4**i for i in range(10)], [0.1] * 18)


@pytest.mark.parametrize(
    ("clip", "whose", "clips"),
    [
        ((), (), False),
        ((0.5,) * 18, (), True),
        ((None,) * 17 + (0.5,), (0,) * 18, True),
        ((0.5,) * 17 + (None,), (0,) * 18, False),
        ((0.5, None) * 9, (0, 1) * 9, False),
    ],
)
def test_nobody_is_told_to_clip_who_clips(clip, whose, clips):
    facts = at_end(replace(GREW, clip=clip, optimizer=whose))
    assert facts.clip == (0.5 if clips else None)
    if len(set(whose)) > 1:
        return
    cause = next(one for one in explain(facts) if one is not None and one.slug == "gradient_explosion")
    assert cause.story is not clips
    assert any("clip_grad_norm_" in (one.code or "") for one in cause.suggestions) is not clips
    assert ("The script clips the gradients to a norm of 0.5." in cause.evidence) is clips


def test_a_bad_learning_rate_after_the_origin_is_not_its_cause():
    past = history([1.0] * 4, [0.1, 0.1, 0.1, math.nan])
    facts = Facts(Origin("nan", 0, (0,), 2), "loss", history=past)
    assert slugs(facts)[0] is None


def test_growing_gradients_with_and_without_a_growing_rate():
    norms = [1.0, 1.1, 1.0, 5.0, 80.0, 900.0, math.nan]
    assert slugs(at_end(history(norms, [0.1] * 7)))[0] == "gradient_explosion"
    assert slugs(at_end(history(norms, [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.3])))[0] == "lr_divergence"


@pytest.mark.parametrize(
    ("rate", "optimizer", "slug"),
    [(0.2, "SGD", "lr_divergence"), (0.02, "SGD", "gradient_explosion"), (0.2, "Adam", "gradient_explosion"),
     (0.2, "a policy's SGD", "gradient_explosion")],
)  # fmt: skip
def test_an_update_that_takes_off_many_times_the_loss_goes_too_far(rate, optimizer, slug):
    norms = (5.0, 6.0, 13.0, 14.0, 21.0, 80.0, 2e4, 2e10, math.nan)
    losses = (15.0, 10.0, 16.0, 7.0, 18.0, 300.0, 1e5, 1e12, math.inf)
    losses = (15.0, -10.0, *losses[2:]) if "policy" in optimizer else losses
    past = replace(history(norms, [rate] * 9), loss=losses)
    harm = Harm("gradient", 8, "gradient", (), 1, 1, optimizer=optimizer.split()[-1])
    story = explain(replace(at_end(past), harm=harm))[0]
    assert story.slug == slug
    too_far = "One update at a learning rate of 0.2 took off 5 times the loss, by the slope of step 4: it goes too far."
    assert (too_far in story.evidence) is (slug == "lr_divergence")


def test_steady_gradients_are_no_divergence():
    assert slugs(at_end(history([1.0, 1.2, 0.9, 1.1, 1.0], [0.1] * 5)))[0] is None


def test_growing_gradients_do_not_explain_a_bad_start():
    norms = [1.0, 1.1, 1.0, 5.0, 80.0, 900.0, math.nan]
    assert slugs(at_end(history(norms, [0.1] * 7), phase="init"))[0] is None


def overflowing(at, by_hand, most=300.0, **rest):
    big = by_hand.fact(max=most, absmax=most, dtype="float16")
    return explain(at("mm", (big, big), (by_hand.fact(posinf=1, dtype="float16"),), phase="forward", **rest))


def test_an_overflow_in_the_first_step_points_at_the_start(at, by_hand):
    story, mechanism = overflowing(at, by_hand, step=0, module="fc")
    assert (story.slug, mechanism.slug) == ("init_scale", "overflow")
    assert story.strength < mechanism.strength
    assert overflowing(at, by_hand, step=1, module="fc")[0] is None


def of_a_weight(at, by_hand, by, *, trained=False):
    weight, batch = by_hand.fact("slow.weight", max=8e37, absmax=8e37), by_hand.fact()
    calm = history([1.0, 1.2, 0.9, 1.1, 1.0], [0.1] * 5)
    extra = {"overgrown": "slow.weight", "overgrown_absmax": 8e37, "overgrown_trained": trained, "of_weights": False}
    extra |= {"overgrown_at": ["/home/me/train.py", 18], "overgrown_by": by} if by else {}
    out = (by_hand.fact(posinf=1),)
    return explain(at("addmm", (batch, weight), out, phase="forward", history=calm, extra=extra))


@pytest.mark.parametrize(
    ("by", "trained", "code"),
    [
        ("slow.add_(slow - fast, alpha=momentum)", False, "slow.lerp_(fast, 1 - momentum)"),
        ("slow.mul_(momentum).add_(fast, alpha=1 + momentum)", False, None),
        ("p.add_(p.grad, alpha=-rate)", True, None), (None, False, None),
    ],
)  # fmt: skip
def test_a_weight_that_ran_away_is_not_blamed_on_the_batch(at, by_hand, by, trained, code):
    story, mechanism = of_a_weight(at, by_hand, by, trained=trained)
    assert (story, mechanism.slug) == (None, "overflow")
    assert any("slow.weight itself goes to 8e37" in text for text in mechanism.evidence), mechanism.evidence
    assert [one.code for one in mechanism.suggestions] == [code]
    assert ("train.py:18" in mechanism.suggestions[0].text) is (by is not None)
    assert "batch" not in mechanism.suggestions[0].text


def test_an_overflow_out_of_a_calm_run_points_at_the_batch(at, by_hand):
    big, out = by_hand.fact(max=3e20, absmax=3e20), (by_hand.fact(posinf=1),)
    calm, short = history([1.0, 1.2, 0.9, 1.1, 1.0], [0.1] * 5), history([1.0, 1.2, 0.9], [0.1] * 3)
    story, _ = explain(at("mm", (big, big), out, phase="forward", history=calm))
    assert (story.slug, story.strength) == ("data_outlier", POSSIBLE)
    assert "step 5" in story.suggestions[0].text
    assert explain(at("mm", (big, big), out, phase="forward", history=short))[0] is None
    # float16 is left by a slow growth of the weights too.
    assert overflowing(at, by_hand, history=calm)[0] is None


def test_what_the_loop_made_of_the_model_is_not_blamed_on_the_batch(at, by_hand):
    big, out, calm = by_hand.fact(max=3e20, absmax=3e20), (by_hand.fact(posinf=1),), history([1.0] * 5, [0.1] * 5)
    story, mechanism = explain(
        at("mm", (big, big), out, phase="forward", history=calm, extra={"looped_at": ["/me/gen.py", 29]})
    )
    assert (story, mechanism.slug) == (None, "overflow")
    assert mechanism.evidence[-1].endswith("at gen.py:29.")
    assert "batch" not in mechanism.suggestions[0].text


def test_growing_gradients_are_no_calm_run(at, by_hand):
    story, _ = overflowing(at, by_hand, most=9e3, history=history([1.0, 1.1, 1.0, 80.0, 900.0], [0.1] * 5))
    assert story.slug == "gradient_explosion"


def test_a_rate_that_rises_all_along_is_told_as_it_was_when_the_growth_began():
    norms = [1.0, 1.1, 1.0, 5.0, 80.0, 900.0, math.nan]
    (told,) = (
        text
        for text in explain(at_end(history(norms, [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.3])))[0].evidence
        if "learning rate" in text
    )
    assert told == "The learning rate rose from 0.01 to 0.3; it was 0.1 when that began."


def test_where_a_rate_was_lower_still_long_before_the_steps_are_told_in_which_it_rose():
    rates = [1e-4 * 1.35**step for step in range(40)]
    facts = at_end(history([*[1.0 + step % 3 / 10 for step in range(36)], 50.0, 800.0, 9e4, math.nan], rates))
    (told,) = (text for text in explain(facts)[0].evidence if "rate rose" in text)
    assert "rose from 0.0001 to" not in told
    assert re.search(r" in the last \d+ steps", told), told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (None, "Lower where what raises the learning rate ends (a schedule's peak, or end value): "),
        ("s = CyclicalScheduler(opt, 'lr', 1e-4, 1.0)", "Lower the peak of the learning rate; "),
    ],
)
def test_where_the_rate_rose_no_line_that_makes_an_optimizer_is_the_mend(line, said):
    """What raises it writes over the rate that the optimizer was made with."""
    past = history([1.0, 1.1, 900.0, 9e5, math.nan], [1e-4, 0.01, 0.02, 0.03, 0.04])
    facts = at_end(past)
    if line is not None:
        facts = replace(facts, compared=Compared(4, rate_set_at=(f"train.py:13: {line}",)))
    cause = next(one for one in explain(facts) if one is not None and one.slug == "lr_divergence")
    assert cause.suggestions[0].text.startswith(said), cause.suggestions[0]
    assert ("train.py:13" in cause.suggestions[0].text) is (line is not None)
    assert cause.suggestions[0].code is None


EXPONENTIAL = [1e-5 * 1.3**n for n in range(40)]
LINEAR = [1e-5 + 0.3 * n for n in range(40)]
SLOW = [1e-2 * 1.1**n for n in range(40)]


@pytest.mark.parametrize(("lrs", "search"), [(EXPONENTIAL, True), (LINEAR, False), (SLOW, False)])
def test_a_search_for_the_highest_rate_is_told_how_to_run_to_its_end(lrs, search):
    norms = [1.0] * 34 + [30.0 * 10**n for n in range(5)] + [math.nan]
    cause = next(one for one in explain(at_end(history(norms, lrs))) if one is not None and one.slug == "lr_divergence")
    codes = [one.code for one in cause.suggestions]
    assert ("nandiag run --on-anomaly continue" in codes) is search, cause
    assert codes[0] is None


def test_a_script_that_puts_weights_back_by_itself_is_told_how_to_be_let_go_on():
    past = at_end(history([1.0, 1.1, 900.0, 9e5, math.nan], [1e-4, 0.01, 0.02, 0.03, 0.04]))
    facts = replace(past, compared=Compared(4, restores_at=("train.py:17",)))
    cause = next(one for one in explain(facts) if one is not None and one.slug == "lr_divergence")
    assert cause.suggestions[1].code == "nandiag run --on-anomaly continue"
    assert "train.py:17" in cause.suggestions[1].text
