"""What numbers that grew too large are blamed on, where it is known how the step compares with those before."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.causes.mends.steps.rates import set_at
from nandiag.analysis.report import Origin
from nandiag.events import Argument, Compared, Harm, History, Looked, Setting, Warned

CALM = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 0.7, 1.0, 1.1, 0.9, 0.8, 1.0]
UP = [3.0, 9.0, 80.0, 900.0, 2e4, 1e7]
STEP = 18
MAY_BE = "the targets, weights or advantages of step {}"


def history(norms, losses=None, lr=0.05):
    many = len(norms)
    return History(tuple(range(many)), tuple(losses or norms), tuple(norms), (lr,) * many, (None,) * many)


def facts(by_hand, compared, past, phase="forward", optimizer="AdamW"):
    step = len(past.step)
    given = by_hand.fact(max=3e20, absmax=3e20)
    origin = Origin("inf", 0, (0,), step, phase=phase, op="aten.mm.default", inputs=(given, given),
                    outputs=(by_hand.fact(posinf=1),))  # fmt: skip
    harm = Harm("loss", step, "loss", (), 1, 1, optimizer=optimizer)
    look = Looked("found", "replay", step, source="op", facts={"float64_finite": True})
    return Facts(origin, "look", harm=harm, look=look, history=past, compared=compared)


def story(*words, **more):
    return explain(facts(*words, **more))[0]


@pytest.mark.parametrize(("batches", "slug"), [((), "data_outlier"), ((11,), "data_outlier"), ((12,), None)])
def test_a_batch_that_was_as_before_is_not_blamed(by_hand, batches, slug):
    found = story(by_hand, Compared(12, batches), history(CALM))
    assert (found and found.slug) == slug
    assert found is None or found.evidence[0].endswith("that speaks for the batch of step 12.")


@pytest.mark.parametrize(("step", "longer"), [(12, True), (14, False)])
def test_where_the_loss_jumped_with_a_far_longer_batch_its_length_is_told(by_hand, step, longer):
    past = history([*CALM, 4e20, 5e20, 8e20, 2e21], [*CALM, 4e20, 5e20, 8e20, 2e21])
    warned = Warned("batch_longer", step, {"shape": [4, 3500], "longest": [4, 128], "batches": 12}, "x")
    told = explain(replace(facts(by_hand, Compared(16, (12,)), past), warned=(warned,)))[0]
    assert told.slug == "data_outlier"
    assert told.evidence[0].startswith("At step 12 x is [4x3500]: 27 times" if longer else "At step 12 the loss jumped")
    assert (told.suggestions[0].code == "x = x[:, :128]") is longer
    assert "the loss jumped" in told.evidence[-1]


def test_what_is_made_of_the_model_and_of_a_target_does_not_tell_which_was_large(by_hand):
    compared = Compared(12, (12,), fresh=("head.weight",), fresh_count=2, total=8)
    asked = facts(by_hand, compared, history(CALM), phase="loss")
    (told, _) = explain(replace(asked, origin=replace(asked.origin, inputs=asked.origin.inputs[:1])))
    assert told.slug == "data_outlier"
    assert told.evidence[0].endswith(f"{MAY_BE.format(12)} may have made it so.")
    assert told.evidence[1] == "No update was made before step 12 of 2 parameters among 8 (head.weight and 1 more)."


def test_a_jump_of_the_loss_speaks_of_the_targets_where_the_inputs_were_as_before(by_hand):
    past = history([*CALM, *[1e9 * 5**n for n in range(6)]], [*CALM, *[2e9 * 5**n for n in range(6)]], lr=1e-3)
    (blamed,), (spared,) = (story(by_hand, Compared(STEP, some), past).evidence for some in ((), (12,)))
    assert "points at the batch" in blamed
    assert "points at the batch" not in spared
    assert "targets" in spared


SET_AT = ("train.py:9: group['weight_decay'] = now",)
DECAY = Setting(0, "weight_decay", 120.0, 0.05, 0.0, 0.0, 120.0, 12, 1, SET_AT)
MOMENTUM = Setting(0, "momentum", 1.3, 0.05, 1.25, 0.9, 1.3, 17, 9)


@pytest.mark.parametrize(
    ("setting", "optimizer", "words"),
    [
        (DECAY, "AdamW", ("from 0 to 120 by the update of step 12", "multiplies weights by -5")),
        (DECAY, "SGD", ("multiplies weights by -5",)),
        (replace(DECAY, before=None, step=None, changes=0), "AdamW", ("The weight_decay is 120",)),
        (MOMENTUM, "SGD", ("at first 0.9, went up to 1.3",)),
        (replace(MOMENTUM, now=0.5), "SGD", ("went up to 1.3",)),
        (replace(MOMENTUM, group=2, before=None, step=None, changes=0), "SGD", ("of group 2 is 1.3",)),
    ],
)
def test_a_setting_by_which_weights_grow_is_named(by_hand, setting, optimizer, words):
    found = story(by_hand, Compared(STEP, (), (setting,)), history([*CALM, *UP]), optimizer=optimizer)
    assert found.slug == "optimizer_setting"
    assert all(word in found.evidence[0] for word in words), found.evidence
    assert "From step" in found.evidence[1]


@pytest.mark.parametrize(
    ("setting", "optimizer"),
    [
        (DECAY, "Adam"),  # there it goes the way of a gradient, by its direction
        (replace(DECAY, now=30.0, most=30.0), "AdamW"),
        (replace(DECAY, now=0.0), "AdamW"),  # it was so large once, and is not any more
        (replace(DECAY, rate=1e-3), "AdamW"),  # another group has the rate of the history
        (replace(DECAY, rate=None), "AdamW"),
        (replace(DECAY, now=0.09, rate=30.0), "AdamW"),  # a usual one, by a rate that is none
        (replace(DECAY, now=math.nan), "AdamW"),
        (MOMENTUM, "PercentMomentum"),  # who knows what it makes of it
        (replace(DECAY, name="eps"), "AdamW"),
        (replace(MOMENTUM, now=0.99, most=0.99), "SGD"),
    ],
)
def test_a_setting_that_lets_nothing_grow_is_not_blamed(by_hand, setting, optimizer):
    past = history([*CALM, *UP])
    assert story(by_hand, Compared(STEP, (), (setting,)), past, optimizer=optimizer).slug == "gradient_explosion"


@pytest.mark.parametrize(("momentum", "told"), [(0.9, False), (0.2, True)])
def test_beside_a_momentum_a_decay_may_be_larger(by_hand, momentum, told):
    settings = replace(DECAY, now=50.0), Setting(0, "momentum", momentum, 0.05)
    found = story(by_hand, Compared(STEP, (), settings), history([*CALM, *UP]), optimizer="SGD")
    assert (found.slug == "optimizer_setting") is told
    assert not told or "a momentum of 0.2 each update turns weights round" in found.evidence[0]


def test_where_the_learning_rate_rose_no_decay_is_blamed(by_hand):
    past = history([*CALM, *UP])
    rose = replace(past, lr=tuple(0.05 if step < 12 else 0.5 for step in past.step))
    assert story(by_hand, Compared(STEP, (), (DECAY,)), rose).slug == "lr_divergence"


def test_new_weights_and_the_model_are_not_blamed_for_a_target(by_hand):
    compared = Compared(12, (12,), fresh=("head.weight",), fresh_count=2, total=8)
    large, small = by_hand.fact(max=3e25, absmax=3e25), by_hand.fact(max=2.0)
    asked = facts(by_hand, compared, history(CALM), phase="loss")
    told = [
        explain(replace(asked, origin=replace(asked.origin, inputs=one)))[0] for one in ((small, large), (large, small))
    ]
    assert [one.slug for one in told] == ["data_outlier", "init_scale"]
    assert MAY_BE.format(12) in told[0].evidence[0]


def test_the_lines_that_set_it_are_shown_else_a_bound(by_hand):
    past = history([*CALM, *UP])
    (shown,) = story(by_hand, Compared(STEP, (), (DECAY,)), past).suggestions
    assert shown.code is None
    assert shown.text.endswith("The script sets it at train.py:9, by group['weight_decay'] = now.")
    (bound,) = story(by_hand, Compared(STEP, (), (MOMENTUM,)), past, optimizer="SGD").suggestions
    assert bound.code == 'group["momentum"] = min(group["momentum"], 0.99)'


def test_a_calm_run_into_which_new_weights_came_speaks_of_them(by_hand):
    compared = Compared(
        12, (12,), fresh=("blocks.0.weight", "blocks.0.bias", "blocks.1.weight"), fresh_count=28, total=32
    )
    found = story(by_hand, compared, history(CALM))
    assert found.slug == "init_scale"
    assert "28 parameters among 32 (blocks.0.weight, blocks.0.bias and 26 more)" in found.evidence[0]
    assert "no larger than before" in found.evidence[0]
    assert story(by_hand, replace(compared, step=13), history(CALM)) is None
    assert story(by_hand, compared, history([*CALM, *UP])).slug == "gradient_explosion"
    assert story(by_hand, compared, history(CALM), phase="backward") is None


def test_a_report_is_made_of_what_the_first_of_the_ranks_compared(by_hand):
    past = history([*CALM, *UP])
    look = Looked("found", "replay", STEP, 0, "forward", "op", inputs=(by_hand.fact(max=3e20, absmax=3e20),) * 2,
                  outputs=(by_hand.fact(posinf=1),), facts={"float64_finite": True})  # fmt: skip
    harm = Harm("gradient", STEP, "backward", (by_hand.fact(nan=1),), 1, 1, optimizer="AdamW", grad_norm=math.nan)
    events = (harm, past, Compared(STEP, (), (DECAY,)), look)
    report = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1))
    assert report.verdict.cause == "optimizer_setting"
    assert not any("called with" in text for text in report.verdict.evidence)


@pytest.mark.parametrize("step", [STEP, STEP - 1])
def test_what_the_model_was_called_with_anew_is_told_in_the_step_of_the_harm(by_hand, step):
    compared = Compared(step, arguments=(Argument("t_end", 2.0, 12.0),))
    log = by_hand.rank(0, by_hand.loss(STEP, value=math.inf), compared, by_hand.found(STEP), world=1)
    told = analyse(by_hand.run(log, world=1)).verdict.evidence
    text = "In this step t_end, which the model is called with, went from 2 to 12."
    assert (text in told) is (step == STEP)


def test_the_lines_that_set_a_rate_that_rose_are_shown(by_hand):
    past = history([*CALM, *UP])
    past = replace(past, lr=(*[0.01] * 12, *[0.1 * 2**n for n in range(6)]))
    line = "train.py:9: sched = ExponentialLR(opt, gamma=2)"
    shown, unknown = (story(by_hand, Compared(STEP, rate_set_at=some), past).suggestions[0] for some in ((line,), ()))
    assert shown.text == f"{unknown.text} The script sets it at train.py:9, by sched = ExponentialLR(opt, gamma=2)."
    assert (shown.code, unknown.code) == (None, None)


def test_a_schedule_that_began_too_high_is_lowered_where_it_is_made(by_hand):
    """What the optimizer is made with is written over by the schedule: a rate put there changes nothing."""
    past = history([2.0**n * 1e3**n for n in range(6)])
    past = replace(past, lr=tuple(0.4 * 1.3**n for n in range(6)))
    line = "train.py:28: sched = OneCycleLR(opt, max_lr=10.0, total_steps=80)"
    told = story(by_hand, Compared(6, rate_set_at=(line,)), past, optimizer="SGD").suggestions[0]
    assert told.code is None
    assert told.text.startswith("Lower the learning rate where it begins, and its peak")
    assert "at train.py:28, by sched = OneCycleLR(" in told.text


def test_a_setting_that_is_no_number_is_blamed_and_not_the_rate(by_hand):
    """The update is given it as it is given the size of a step."""
    decay = Setting(0, "weight_decay", math.nan, 1e-3, 0.01, 0.01, math.nan, 12, 1, ("train.py:8: decay = 0 * inf",))
    known = facts(by_hand, Compared(12, (), (decay,)), history(CALM), phase="optimizer")
    given = replace(known.origin, op="aten.add.Tensor", inputs=(by_hand.fact(), by_hand.fact()))
    look = replace(known.look, facts={"alpha": "nan", "reconstructed": True, "parameters": ["w"]})
    found = explain(replace(known, origin=given, look=look))[0]
    assert (found.slug, found.evidence) == ("optimizer_setting", ("weight_decay is nan; it was 0.01 before step 12",))
    assert found.suggestions[0].code is None
    assert found.suggestions[0].text.endswith("The script sets it at train.py:8, by decay = 0 * inf.")


def test_of_a_loop_in_one_line_the_assignment_alone_is_told():
    line = "f08.py:29: for gr in opt.param_groups: gr['lr'] = lr"
    assert set_at([line], "the rate") == "The script sets the rate at f08.py:29, by gr['lr'] = lr."
    other = "f08.py:29: for gr in opt.param_groups: change(gr)"
    assert set_at([other]) == "The script sets it at f08.py:29, by for gr in opt.param_groups: change(gr)."


@pytest.mark.parametrize(("norm", "slug"), [(188721.0, "gradient_explosion"), (200.0, "data_outlier")])
def test_gradients_that_grow_more_than_the_loss_speak_of_the_model(by_hand, norm, slug):
    """Of a mean of squares the gradient grows as the root of the loss does, where targets alone are large."""
    past = history([*CALM, norm, 3e15], [*CALM, 17034.0, 1e27], lr=1e-3)
    found = story(by_hand, Compared(14, (12, 13, 14)), past)
    assert found.slug == slug
    assert ("the gradients grew more than that" in found.evidence[0]) is (slug == "gradient_explosion")
    assert all(word in found.evidence[0] for word in (MAY_BE.format(12), "layer"))
    assert MAY_BE.format(12) in found.suggestions[0].text


@pytest.mark.parametrize(
    ("losses", "jumped"),
    [
        ([0.05, -0.02, 0.03, -0.06, 0.01, 0.04, -0.03, 0.02, 0.05, -0.01, 0.03, 0.02], -1e23),  # of either sign
        ([0.05, 0.001, 0.06, 0.002, 0.05, 0.001, 0.07, 0.004, 0.06, 0.001, 0.05, 0.003], 1e23),  # below its spread
        ([0.05, 0.04, 0.05, 0.04, 0.05, 0.05, 0.04, 0.05, 0.05, 0.04, 0.05, 0.05], -1e23),  # below 0 as it jumps
    ],
)  # fmt: skip
def test_a_loss_that_is_no_power_of_an_error_does_not_blame_the_model(by_hand, losses, jumped):
    """Centred advantages make the loss small whatever their size: large ones make the gradient grow more than that."""
    past = history([*CALM, 1e25], [*losses, jumped], lr=1e-3)
    found = story(by_hand, Compared(13, (11, 12, 13)), past)
    assert found.slug == "data_outlier"
    assert MAY_BE.format(12) in found.evidence[0]


SUM = "train.py:8: dist.all_reduce(p, op=dist.ReduceOp.SUM)"


@pytest.mark.parametrize("past", [history([*CALM, *UP]), history([10.0 * 4.0**at for at in range(18)])])
def test_training_that_ran_away_beside_an_exchange_of_weights_is_not_laid_to_the_rate_alone(by_hand, past):
    found = story(by_hand, Compared(STEP, exchanged=(SUM,)), past, optimizer="SGD")
    assert (found.slug, found.leads) == ("gradient_explosion", True)
    assert f"exchanges weights, or what is as large, in {SUM}" in found.evidence[-1]
    assert found.suggestions[0].text.startswith("Look at train.py:8 first")
    assert found.suggestions[0].code == "dist.all_reduce(p, op=dist.ReduceOp.SUM)\np /= dist.get_world_size()"
    assert found.suggestions[1].text.startswith("If it grows without that exchange too: ")
    other = story(by_hand, Compared(STEP, exchanged=("train.py:8: dist.reduce(pull.clone(), 0)",)), past)
    assert other.suggestions[0].code is None


@pytest.mark.parametrize("line", ["dist.broadcast(flat, 0)", "dist.all_reduce(p, op=dist.ReduceOp.MAX)"])
@pytest.mark.parametrize("past", [history([*CALM, *UP]), history([10.0 * 4.0**at for at in range(18)])])
def test_a_copy_of_weights_adds_nothing_up_and_is_told_behind_the_help_for_the_rate(by_hand, past, line):
    alone = story(by_hand, Compared(STEP), past, optimizer="SGD")
    found = story(by_hand, Compared(STEP, exchanged=(f"train.py:8: {line}",)), past, optimizer="SGD")
    assert (found.slug, found.leads) == (alone.slug, alone.leads)
    assert found.suggestions[:-1] == alone.suggestions
    assert "train.py:8" in found.suggestions[-1].text
    assert "sum" not in found.suggestions[-1].text


def test_a_rate_that_rose_comes_before_a_sum_of_weights(by_hand):
    past = history([*CALM, *UP])
    past = replace(past, lr=(*past.lr[: len(CALM)], *(5.0 for _ in UP)))
    found = story(by_hand, Compared(STEP, exchanged=(SUM,)), past, optimizer="SGD")
    assert found.slug == "lr_divergence"
    assert not found.suggestions[0].text.startswith("Look at train.py:8")
    assert "a sum over ranks" in found.suggestions[-1].text
    assert found.suggestions[-1].code is None


@pytest.mark.parametrize(("behind", "told"), [([9e8, 8e8, 9e8], True), ([5.0, 4.0, 9e8], False), ([], False)])
def test_where_the_loss_stays_as_large_the_batches_behind_are_to_be_looked_at_too(by_hand, behind, told):
    steps = [*CALM, 1e9, *behind, float("inf")]
    (blamed,) = [story(by_hand, Compared(len(steps) - 1, ()), history(steps))]
    text = blamed.suggestions[0].text
    assert ("the scale of the data changed there" in text) is told
