"""The story behind an overflow, told from histories as runs write them: which cause, how sure, with which numbers."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import Facts, divergence, explain
from nandiag.analysis.causes.course import Course, Row, courses
from nandiag.analysis.causes.facts import LIKELY, POSSIBLE
from nandiag.analysis.causes.mends.steps import rates
from nandiag.analysis.report import Origin
from nandiag.events import Compared, GroupRate, Harm, History, Looked, Trainer

CALM = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 0.7, 1.0, 1.1, 0.9, 0.8, 1.0]


def history(norms, losses=None, lrs=0.01, whose=(), steps=None):
    many = len(norms)
    losses = list(norms) if losses is None else losses
    lrs = [lrs] * many if isinstance(lrs, float) else lrs
    return History(
        tuple(steps or range(many)), tuple(losses), tuple(norms), tuple(lrs), (None,) * many, optimizer=tuple(whose)
    )


def facts(past, by_hand, **changes):
    """A float32 product that overflowed in the step after ``past``."""
    step = changes.pop("step", max(past.step, default=-1) + 1)
    phase, dtype = changes.pop("phase", "forward"), changes.pop("dtype", "float32")
    op, given = changes.pop("op", "mm"), changes.pop("given", by_hand.fact(max=60000.0, absmax=60000.0, dtype=dtype))
    origin = Origin(
        "inf", 0, (0,), step, phase=phase, op=f"aten.{op}.default", inputs=(given, given),
        outputs=(by_hand.fact(posinf=1, dtype=dtype),),
    )  # fmt: skip
    harm = Harm("loss", step, "loss", (), 1, 1, optimizer="SGD", names=changes.pop("names", {}))
    look = Looked("found", "replay", step, source="op", facts={"float64_finite": op == "mm"})
    return Facts(origin, "look", harm=harm, look=look, history=past)


def story_of(past, by_hand, **changes):
    return explain(facts(past, by_hand, **changes))[0]


UP = [3.0, 9.0, 80.0, 900.0, 2e4, 1e7]


@pytest.mark.parametrize(
    ("name", "past", "slug"),
    [
        ("too high from the first step", history([1.0, *UP]), "lr_divergence"),
        ("too high, in three steps", history([1.0, 2e3, 8e7]), "lr_divergence"),
        ("the loss alone tells", history([None] * 6, [2.0, 9.0, 80.0, 1e3, 1e5, 1e8]), "lr_divergence"),
        ("norms beyond float32", history([1.0, 50.0, 1e10, math.inf], [1.0, 9.0, 1e9, 1e30]), "lr_divergence"),
        ("a schedule that rises", history([*CALM, *UP], lrs=[0.1 * 1.3**i for i in range(18)]), "lr_divergence"),
        ("a rate that jumps", history([*CALM, *UP], lrs=[0.01] * 12 + [1.0] * 6), "lr_divergence"),
        ("growth behind calm steps", history([*CALM, *UP]), "gradient_explosion"),
        ("the rate falls", history([*CALM, *UP], lrs=[0.1 * 0.9**i for i in range(18)]), "gradient_explosion"),
        ("one steep gradient", history([1900.0], [1.6]), "gradient_explosion"),
        ("one step, steep enough for float32", history([3.1e5], [4788.0]), "gradient_explosion"),
        ("one step, and a long one", history([300.0], [90.0], lrs=5.0), "lr_divergence"),
        ("weights too large", history([3e9, 2e10, 5e15], [4e8, 5e9, 3e14]), "init_scale"),
        ("large, and multiplied", history([7e6, 1e8, 3e10, 2e19], [1e7, 9e7, 5e11, 8e22]), "lr_divergence"),
        ("large, and as large", history([7e9, 1e10, 3e10, 2e13], [1e8, 9e8, 8e9, 7e11]), "init_scale"),
        ("calm to the end", history(CALM), "data_outlier"),
        ("a jump, then slow death", history([*CALM, 9e8, 2e9, 7e9], [*CALM, 4e9, 5e9, 6e9]), "data_outlier"),
        ("a jump, then calm", history([*CALM, math.inf, 0.9], [*CALM, 1.3e20, 0.8]), "data_outlier"),
        ("two leaps, a step apart", history([*CALM, 90.0, 1.1, 5e6], [*CALM, 40.0, 1.1, 2e5]), "gradient_explosion"),
        ("a wild step long before", history([*CALM[:6], 90.0, *CALM[6:], 9e8], [*CALM, 1.0, 4e9]), "data_outlier"),
        ("the gradient jumps, not the loss", history([*CALM, 5e6], [*CALM, 1.1]), "gradient_explosion"),
        ("too little is known", history([1.0, 1.2]), None),
        ("one step, and nothing odd", history([2.0], [1.5]), None),
        ("noise of a hundred", history([1.0, 60.0, 0.5, 90.0, 2.0, 70.0, 1.0, 80.0, 3.0, 0.8] * 3, [1.0] * 30), None),
        ("it grew and recovered", history([*CALM, *UP, 3.0, *CALM, *CALM], [1.0] * 43), "data_outlier"),
    ],
)  # fmt: skip
def test_the_story(by_hand, name, past, slug):
    story = story_of(past, by_hand)
    assert (story and story.slug) == slug


def test_the_step_that_broke_is_none_of_the_calm_ones_before_it_though_its_loss_was_finite(by_hand):
    story = story_of(history(CALM), by_hand, step=len(CALM) - 1)
    assert story.slug == "data_outlier"
    assert any(f"The {len(CALM) - 1} steps before were calm" in text for text in story.evidence), story.evidence


@pytest.mark.parametrize(
    ("what", "most", "dtype", "slug"),
    [
        ("scores of values of a usual size", 130.0, "float16", None),
        ("large values went in", 9000.0, "float16", "gradient_explosion"),
        ("a type with the range of float32", 130.0, "bfloat16", "gradient_explosion"),
    ],
)
def test_values_of_a_usual_size_left_float16_whatever_grew_meanwhile(by_hand, what, most, dtype, slug):
    past, given = history([*CALM, 3.0, 9.0, 80.0, 200.0]), by_hand.fact(max=most, absmax=most, dtype=dtype)
    story, mechanism = explain(facts(past, by_hand, dtype=dtype, given=given))
    assert (story and story.slug) == slug, what
    assert mechanism.slug == "overflow"


def test_a_course_that_rises_by_orders_of_magnitude_is_no_calm_one_before_its_last_leap(by_hand):
    """Peaks that are each some times the one before, and between them the loss comes down again."""
    low = [3.0, 2.0, 2.5, 3.5, 2.2] * 4
    norms = [*low, 31.9, 20.1, 5.1, 8.0, 6.6, 430.9, 21.0, 9.9, 4.3, 8.8, 1.5e5, 3.8e5, 1.8e10]
    losses = [*(2 * one for one in low), 21.3, 17.2, 6.6, 9.6, 8.9, 357.0, 15.9, 12.2, 8.3, 10.4, 4e5, 3e5, 4.9e11]
    past = history(norms, losses)
    story = story_of(past, by_hand)
    assert story.slug == "gradient_explosion"
    assert story.evidence[0].startswith("From step 19 to step 32 the gradient norm grew from 2.2 to 1.8e10")
    assert not any("batch" in one.text for one in story.suggestions)
    wild = history([*low, 31.9, *low[:8], 1.5e5], [*low, 45.0, *low[:8], 4e5])  # one wild step is one among calm ones
    assert story_of(wild, by_hand).slug == "data_outlier"


def test_what_ran_away_beyond_doubt_did_so_in_float16_too(by_hand):
    given = by_hand.fact(max=130.0, absmax=130.0, dtype="float16")
    assert story_of(history([*CALM, *UP]), by_hand, dtype="float16", given=given).slug == "gradient_explosion"


def test_a_bad_sample_in_a_healthy_run_is_never_told_as_a_learning_rate(by_hand):
    for lrs in (0.01, [0.01 * 1.01**i for i in range(13)], [0.1 / (1 + i) for i in range(13)]):
        past = history([*CALM, 1e12], [*CALM, 1e13], lrs=lrs)
        assert story_of(past, by_hand).slug == "data_outlier"


def test_the_numbers_are_told(by_hand):
    past = history([*CALM, *UP], lrs=[0.01] * 12 + [0.5] * 6)
    story = story_of(past, by_hand)
    assert story.evidence[0] == (
        "From step 12 to step 17 the gradient norm grew from 3 to 1e7 and the loss from 3 to 1e7."
    )
    assert story.evidence[1] == "The learning rate rose from 0.01 to 0.5."
    past = history([*CALM, 1e12, 1.0], [*CALM, 1.0, 1.0])
    (course,) = courses(past, 14)
    assert course.grown().startswith("From step 11 to step 12 the gradient norm grew from 1 to 1e12"), course.grown()
    few = "nothing grew at 0.01, but in few steps; where it does, 0.001 is a first try."
    assert few in story.suggestions[0].text


def test_a_rate_that_was_held_is_a_peak_and_one_that_was_passed_is_none(by_hand):
    """Momentum, and weights that grow slowly, take longer than a schedule stays at one rate."""
    calm = [3.0] * 40
    held = history([*calm, *UP], lrs=[0.01] * 40 + [0.5] * 6)
    assert "up to 0.01 nothing grew." in story_of(held, by_hand).suggestions[0].text
    passed = history([*calm, *UP], lrs=[0.01 * 1.2**i for i in range(40)] + [0.01 * 1.2**48] * 6)
    text = story_of(passed, by_hand).suggestions[0].text
    assert "nothing grew" in text
    assert "only passed" in text


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (('train.py:12: g["lr"] = base * t / warmup',), 'g["lr"] = min(base * t / warmup, 0.012)  # train.py:12'),
        (('train.py:12: g["lr"] = base * t', 'train.py:14: g["lr"] = base'), None),
        (("train.py:12: sched = LambdaLR(opt, f)",), None),
        ((), None),
    ],
)
def test_the_one_line_that_sets_a_rate_is_bounded(lines, code):
    assert rates.bounded(lines, 0.012) == code


def test_groups_with_rates_of_their_own_are_named_and_no_single_rate_is_advised(by_hand):
    told = facts(history([1.0, 2e3, 8e7], lrs=20.48), by_hand)
    rates = (GroupRate(0, 20.48, ("0.weight", "0.bias")), GroupRate(10, 0.02))
    story, _ = explain(replace(told, harm=replace(told.harm, rates=rates)))
    assert story.slug == "lr_divergence"
    assert story.evidence[1] == (
        "It grew from the first updates on. Of the optimizer's groups, group 0 (0.weight, 0.bias) has a learning rate "
        "of 20.48, group 10 has 0.02."
    )
    assert story.suggestions[0].text.startswith("Lower the learning rate of group 0:")
    assert not any("lr=" in (one.code or "") for one in story.suggestions)
    two = replace(told.history, optimizer=(0, 1, 0))
    story, _ = explain(replace(told, history=two, harm=replace(told.harm, rates=rates)))
    assert "groups" not in story.evidence[1]


def leapt(by_hand, lrs):
    return explain(facts(history([1.0] * len(lrs), lrs=lrs), by_hand))[0]


@pytest.mark.parametrize(("low", "high"), [(0.01, 1e20), (0.0, 50.0)])
def test_a_rate_that_leapt_right_before_is_the_story_and_no_batch(by_hand, low, high):
    story = leapt(by_hand, [low] * 20 + [high])
    assert (story.slug, story.strength) == ("lr_divergence", LIKELY)
    assert "leapt" in story.evidence[0]


@pytest.mark.parametrize("lrs", [[0.01] * 20 + [0.02], [0.0] * 20 + [1e-4], [1e-3 * i for i in range(21)]])
def test_a_warm_up_is_no_leap(by_hand, lrs):
    assert leapt(by_hand, lrs).slug == "data_outlier"


def test_a_rate_to_try_is_no_higher_than_what_brings_the_loss_to_zero(by_hand):
    def tried(name):
        past = facts(history([2.0, 2.0, *UP], losses=[1.0, 1.0, *UP], lrs=[0.0, 0.0] + [100.0] * 6), by_hand)
        past = replace(past, harm=replace(past.harm, optimizer=name))
        return explain(past)[0].suggestions[0].text

    assert ": 0.3 is a first try" in tried("SGD")
    assert ": 0.001 is a first try" in tried("AdamW")
    assert ": 1e+01 is a first try" in tried("Own")


@pytest.mark.parametrize(
    ("kind", "lr", "slug"),
    [
        ("Adam", 1e-3, "gradient_explosion"),
        ("Adam", 0.1, "lr_divergence"),
        ("SGD", 1e-3, "lr_divergence"),  # its updates are as long as its gradients
        ("Own", 1e-3, "lr_divergence"),
    ],
)
def test_updates_that_move_no_weight_far_make_nothing_grow(by_hand, kind, lr, slug):
    """A rollout whose horizon grows with the epoch: the growth is that of one forward."""
    past = facts(history([0.8, 1.1, 40.0, 1e9], [0.9, 0.9, 9.0, 1e8], lrs=lr), by_hand)
    story = explain(replace(past, harm=replace(past.harm, optimizer=kind)))[0]
    assert story.slug == slug
    assert ("within a step" in story.evidence[1]) is (slug == "gradient_explosion")
    if slug == "gradient_explosion":
        assert "0.004 at most" in story.evidence[1]
        assert "shorter horizon" in story.suggestions[0].text


def test_the_rate_of_the_step_itself_counts(by_hand):
    past = history([*CALM, 300.0, 1.0], lrs=[0.01] * 12 + [0.01, 4.0], steps=[*range(13), 13])
    assert story_of(past, by_hand, step=13).slug == "lr_divergence"


def test_each_optimizer_has_a_course_of_its_own(by_hand):
    critic, generator = UP, [0.5] * 6
    past = history(
        [norm for pair in zip(critic, generator, strict=True) for norm in pair],
        lrs=[0.05, 0.005] * 6, whose=[0, 1] * 6, steps=[step for step in range(6) for _ in range(2)],
    )  # fmt: skip
    story = story_of(past, by_hand)
    assert story.slug == "lr_divergence"
    assert not any("rose" in text for text in story.evidence)
    assert len(courses(past, 6)) == 2


def test_of_several_optimizers_the_one_that_grew_is_named_with_its_model(by_hand):
    past = history(
        [norm for one in UP for norm in (0.5, one)], [loss for one in UP for loss in (0.5, one)],
        lrs=[0.01, 0.05] * 6, whose=[0, 1] * 6, steps=[step for step in range(6) for _ in range(2)],
    )  # fmt: skip
    past = replace(past, trainers=(Trainer("Adam", "opt_d", "D"), Trainer("RMSprop", "opt_g", "G")))
    story = story_of(past, by_hand, names={"model": "D", "optimizer": "opt_d"})
    assert story.evidence[0].endswith("(by opt_g)."), story.evidence
    codes = [one.code for one in story.suggestions]
    assert codes == ["opt_g = RMSprop(..., lr=0.001)", None, "torch.nn.utils.clip_grad_norm_(G.parameters(), 1.0)"]


def test_what_is_not_a_consequence_of_large_numbers_is_left_to_its_op(by_hand):
    zero = by_hand.fact(zeros=3, min=0.0, max=1.0, absmax=1.0)
    story, mechanism = explain(facts(history([*CALM, *UP[:4]]), by_hand, op="log", given=zero))
    assert mechanism.slug == "log_of_zero"
    assert story.strength == POSSIBLE
    assert story_of(history([*CALM, *UP, 1e12]), by_hand, op="log", given=zero).strength == LIKELY


def test_a_loss_that_begins_next_to_zero_has_not_run_away(by_hand):
    policy = [-3.7e-9, -0.01, -0.02, -0.12, -0.2, -0.27]
    assert story_of(history([0.73, 0.7, 0.8, 0.9, 0.92, 0.92], policy), by_hand) is None
    assert story_of(history([0.73, 0.7, 0.8, 0.9, 0.92, 0.92], [0.5, 0.6, 9.0, 300.0, 900.0, 8e3]), by_hand) is not None


def test_what_the_fault_itself_made_of_the_gradients_is_no_growth(by_hand):
    zero = by_hand.fact(zeros=1, min=0.0, max=0.0, absmax=0.0, shape=(1,))
    given = facts(history([*CALM, math.inf]), by_hand, op="div", given=zero, phase="optimizer", step=12)
    spoilt = replace(given, harm=replace(given.harm, what="gradient"))
    assert [cause.slug for cause in explain(spoilt) if cause] == ["division_by_zero"]
    finite = replace(given, harm=replace(given.harm, what="parameter"))
    assert "gradient_explosion" in [cause.slug for cause in explain(finite) if cause]
    grown = facts(history([*CALM, *UP, math.inf]), by_hand, phase="optimizer", step=18)
    assert explain(replace(grown, harm=spoilt.harm))[0].slug == "gradient_explosion"


def test_half_precision_is_left_by_slow_growth_too(by_hand):
    assert story_of(history(CALM), by_hand, dtype="float16") is None


def test_an_exponential_needs_no_outlier(by_hand):
    assert story_of(history(CALM), by_hand, op="exp", given=by_hand.fact(max=120.0, absmax=120.0)) is None


@pytest.mark.parametrize("phase", ["data", "init", "checkpoint"])
def test_no_story_where_training_did_nothing_yet(by_hand, phase):
    assert story_of(history([1.0, *UP]), by_hand, phase=phase) is None


@pytest.mark.parametrize(("dtype", "strength"), [("float32", LIKELY), ("float16", POSSIBLE)])
def test_the_first_step(at, by_hand, dtype, strength):
    big, out = by_hand.fact(max=3e37, absmax=3e37, dtype=dtype), by_hand.fact(posinf=1, dtype=dtype)
    story = explain(at("mm", (big, big), (out,), phase="forward", step=0, module="fc"))[0]
    assert (story.slug, story.strength) == ("init_scale", strength)


def test_a_mend_of_the_exponent_in_the_first_step_stands_alone(at, by_hand):
    big, out = by_hand.fact(max=96.0, absmax=96.0), by_hand.fact(posinf=1)
    line = "p = torch.exp(z / tau) / torch.exp(z / tau).sum(1, keepdim=True)"
    for text, alone in ((line, True), ("k = torch.exp(z / tau)", False)):
        first = text.index("torch.exp")
        facts = at("exp", (big,), (out,), phase="loss", step=0, module="crit", file="a.py", line=3, text=text,
                   column=(first, first + len("torch.exp(z / tau)")))  # fmt: skip
        story = explain(facts)[0]
        assert story.evidence[0].startswith("It is the first step")
        assert (story.suggestions == ()) is alone


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ({}, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        ({"model": "self.net"}, "torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)"),
        (
            {"optimizer": "opt"},
            'torch.nn.utils.clip_grad_norm_([p for group in opt.param_groups for p in group["params"]], 1.0)',
        ),
    ],
)
def test_advice_in_the_scripts_own_names(by_hand, names, code):
    story = story_of(history([*CALM, *UP]), by_hand, names=names)
    assert story.suggestions[0].code == code


@pytest.mark.parametrize(
    ("names", "total", "code"),
    [(("b", "w"), 2, "torch.nn.utils.clip_grad_norm_([b, w], 1.0)"), (("b", "w"), 3, None), (("0.weight",), 1, None)],
)
def test_a_script_that_updates_by_hand_has_no_model_to_clip(by_hand, names, total, code):
    tensors = tuple(by_hand.fact(name, nan=1) for name in names)
    harm = Harm("gradient", 16, "backward", tensors, len(tensors), total, since=15)
    log = by_hand.rank(0, by_hand.loss(16), harm, history([*CALM, *UP]), world=1)
    told = analyse(by_hand.run(log, world=1)).verdict.suggestions
    assert next(one.code for one in told if "lip the gradients" in one.text) == code


def test_code_of_a_loop_that_makes_its_updates_by_hand_may_have_run_away(by_hand):
    past = history([*CALM, *UP])
    away = facts(past, by_hand, phase="data")
    assert explain(away)[0] is None
    loop = replace(away, harm=replace(away.harm, optimizer=None))
    assert explain(loop)[0].slug == "gradient_explosion"
    loaded = replace(loop, look=replace(loop.look, facts={**loop.look.facts, "dataset": "Rows"}))
    assert explain(loaded)[0].slug == "data_nonfinite"


def test_the_learning_rate_to_try(by_hand):
    story = story_of(history([1.0, *UP], lrs=0.8), by_hand)
    assert story.suggestions[0].code == "SGD(..., lr=0.08)"


def test_columns_that_do_not_match_are_no_error():
    assert courses(History((0, 1), (1.0,), (), (), (), optimizer=(0, 0, 0)), 5) == ()
    assert courses(None, 5) == ()


def test_a_second_optimizer_whose_updates_do_not_count_as_steps_yet(by_hand):
    """A run of two phases: the step stands still until the second optimizer has made as many updates as the first."""
    past = history(
        [*CALM, 2.0, 4e3, 9e9, math.inf], lrs=[0.02] * 12 + [20.0] * 4, whose=[0] * 12 + [1] * 4,
        steps=[*range(12), 12, 12, 12, 12],
    )  # fmt: skip
    story = story_of(past, by_hand, step=12)
    assert story.slug == "lr_divergence"
    assert "20" in story.evidence[1]
    assert "optimizer 2 of 2" in story.evidence[0]


def test_a_new_optimizer_is_no_calm_run(by_hand):
    past = history([*CALM, 2.0, math.inf], whose=[0] * 12 + [1] * 2, steps=[*range(12), 12, 12])
    assert story_of(past, by_hand, step=12) is None


def test_the_norm_times_the_rate_is_the_update_of_plain_descent_alone(by_hand):
    past = history([62298.0], [23556.0], lrs=0.001)
    plain = facts(past, by_hand)
    assert explain(plain)[0].slug == "lr_divergence"
    adam = replace(plain, harm=replace(plain.harm, optimizer="Adam"))
    assert explain(adam)[0] is None or explain(adam)[0].slug not in {"lr_divergence", "gradient_explosion"}
    steep = replace(facts(history([3.1e5], [4788.0]), by_hand), harm=adam.harm)
    assert explain(steep)[0] is None or "last update" not in explain(steep)[0].evidence[0]


def test_no_update_is_blamed_for_what_no_weight_went_into(by_hand):
    fault = facts(history([62298.0], [23556.0], lrs=0.001), by_hand)
    of_data = replace(fault, look=replace(fault.look, facts={**fault.look.facts, "of_weights": False}))
    story = explain(of_data)[0]
    assert story is None or story.slug not in {"lr_divergence", "gradient_explosion"}


def test_in_the_first_step_the_size_of_what_the_model_was_given_is_told(at, by_hand):
    given, bad = by_hand.fact(max=271.0, absmax=271.0), by_hand.fact(posinf=1)
    for ends, how in (([0.0, 255.0], "0 to 255, to a size of about 1"), ([-900.0, 120.0], "-900 to 120")):
        facts = at("exp", (given,), (bad,), module="", step=0, extra={"model_given": ends})
        story = explain(facts)[0]
        assert story.slug == "init_scale"
        assert how in story.suggestions[0].text
        assert ("255, as for pixels" in story.suggestions[0].text) == (ends[1] == 255.0)


def test_where_the_steps_before_were_calm_their_gradients_need_no_clipping(at, by_hand):
    given, bad = by_hand.fact(max=1e14, absmax=1e14), by_hand.fact(posinf=1)
    extra = {"arg1": 3.0, "float64_finite": True, "float64_absmax": 1e42, "dtype": "float32"}
    before = history([0.5, 0.4, 0.5, 0.4], [1.0, 1.1, 0.9, 1.0])
    calm, unknown = (
        at("pow", (given,), (bad,), step=4, phase="forward", extra=extra, history=one) for one in (before, None)
    )
    told, other = (explain(one)[1].suggestions[0].text for one in (calm, unknown))
    assert "take smaller steps there" in told
    assert "earlier steps" in other


@pytest.mark.parametrize(("before", "slug"), [(False, "lr_divergence"), (True, None)])
def test_what_numpy_made_before_the_first_step_is_no_matter_of_the_course(by_hand, before, slug):
    known = facts(history([1.0, *UP]), by_hand)
    heard = {"numpy": "divide by zero encountered in log", "heard": True, "heard_before": before}
    found = divergence.explain(replace(known, look=replace(known.look, facts=heard)))
    assert (found.slug if found else None) == slug


def test_the_rate_of_a_rank_that_trains_with_less_is_a_first_try(by_hand):
    past = history([1.0, 50.0, 1e4, 1e9], [1.0, 60.0, 1e4, 1e9], lrs=1.2)
    asked = replace(facts(past, by_hand), rates={0: 0.02, 1: 1.2})
    first = explain(asked)[0].suggestions[0]
    assert "0.02, as on rank 0, is a first try" in first.text
    assert "lr=0.02)" in (first.code or "lr=0.02)")


def test_a_large_loss_that_updates_multiply_is_told_to_go_slower_and_to_normalise(by_hand):
    past = history([7e6, 1e8, 3e10, 2e19], [1e7, 9e7, 5e11, 8e22], lrs=[None] * 4)
    first, second, *_ = story_of(past, by_hand).suggestions
    assert first.text.startswith("Lower the learning rate")
    assert second.text.startswith("Normalise the inputs")


def test_weights_that_a_loop_updates_by_hand_have_no_layer_to_initialise(by_hand):
    asked = facts(history([3e9, 2e10, 5e15], [4e8, 5e9, 3e14]), by_hand)
    assert explain(asked)[0].suggestions[0].code == "torch.nn.init.kaiming_normal_(layer.weight)"
    own = replace(asked, harm=replace(asked.harm, optimizer=None))
    assert explain(own)[0].suggestions[0].code is None


def test_a_norm_of_which_the_square_overflows_is_told_as_such_and_not_as_infinite():
    rows = (Row(0, 1.0, 1.0, None), Row(1, 1.0, 1.0, None), Row(2, 1e26, 1e39, None))
    grown = Course(rows, 2, 1.0, 1.0).grown()
    assert "more than float32 holds" not in grown
    assert "the gradient norm grew from 1 to beyond 1.8e19 (float32 does not hold its square)" in grown


@pytest.mark.parametrize(
    ("rate", "kind", "first"), [(1.0, "Adam", 0), (0.005, "Adam", 1), (1.0, "SGD", 1)]
)  # fmt: skip
def test_of_two_optimizers_of_a_kind_the_one_that_broke_at_a_far_higher_rate_is_meant(rate, kind, first):
    """What trains against it grows by what that one's updates have made of it."""
    past = history([25.0, 0.02, 6.6, 33.7, math.nan], [5.0, 0.002, 6.4, 27.8, math.inf], whose=(0, 1, 0, 1, 0),
                   lrs=[rate, 0.001, rate, 0.001, rate], steps=(0, 1, 1, 2, 2))  # fmt: skip
    past = replace(past, trainers=(Trainer(kind, None, "D"), Trainer("Adam", None, "G")))
    assert [one.number for one in courses(past, 2)] == [first, 1 - first]


@pytest.mark.parametrize("hooked", [True, False])
def test_a_clip_stands_where_the_updates_are_made(by_hand, hooked):
    past = history([*CALM, 40.0, 1e4, 1e7, 1e13])
    given = replace(facts(past, by_hand, names={"model": "net"}), compared=Compared(16, hooked=hooked))
    code = next(one.code for one in explain(given)[0].suggestions if one.text.startswith("Clip the gradients"))
    assert code.startswith(
        "torch.nn.utils.clip_grad_norm_([p], 1.0)" if hooked else "torch.nn.utils.clip_grad_norm_(net."
    )
