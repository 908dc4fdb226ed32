"""Each cause fits where its facts are and nowhere else."""

import pytest

from nandiag.analysis import analyse, causes
from nandiag.analysis.causes import Cause, Facts, explain, overflow
from nandiag.analysis.causes.facts import LIKELY, PROVEN
from nandiag.analysis.report import Origin
from nandiag.events import Harm, Skipped
from tests.unit.analysis.causing import slugs
from tests.unit.analysis.conftest import ended, rank, run, state


def test_log_of_zero(at, by_hand):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),))
    story, mechanism = explain(facts)
    assert (story, mechanism.slug, mechanism.strength) == (None, "log_of_zero", PROVEN)
    assert mechanism.evidence == ("the input of log holds 3 zeros in 16 values; log(0) is -inf",)
    assert all("float16" not in one.text for one in mechanism.suggestions)


def test_a_log_without_zeros_is_no_log_of_zero(at, by_hand):
    assert slugs(at("log", (by_hand.fact(min=0.5),), (by_hand.fact(neginf=3),)))[1] == "unknown"
    backward = at(
        "div", (by_hand.fact(),), (by_hand.fact(posinf=1),), node="LogBackward0", forward_op="aten.log.default"
    )
    assert slugs(backward)[1] == "unknown"


def test_log_of_zero_in_half_precision_warns_of_small_constants(at, by_hand):
    facts = at("log", (by_hand.fact(zeros=3, dtype="float16"),), (by_hand.fact(neginf=3, dtype="float16"),))
    assert "float16" in explain(facts)[1].suggestions[0].text


def test_the_gradient_of_log_at_zero(at, by_hand):
    facts = at(
        "div", (by_hand.fact(), by_hand.fact(zeros=1)), (by_hand.fact(posinf=1),),
        node="LogBackward0", forward_op="aten.log.default", phase="backward",
    )  # fmt: skip
    assert slugs(facts)[1] == "log_of_zero"


@pytest.mark.parametrize(("smallest", "slug"), [(5.6e-45, "log_of_zero"), (1e-30, "overflow")])
def test_the_gradient_of_log_beside_zero_leaves_the_dtype(at, by_hand, smallest, slug):
    facts = at(
        "div", (by_hand.fact(max=1e10, absmax=1e10), by_hand.fact(min=smallest)), (by_hand.fact(neginf=1),),
        node="LogBackward0", forward_op="aten.log.default", phase="backward", extra={"float64_finite": True},
    )  # fmt: skip
    assert slugs(facts)[1] == slug


@pytest.mark.parametrize(
    ("op", "given", "slug"),
    [
        ("log", {"min": -0.5}, "domain_error"),
        ("sqrt", {"min": -1e-9}, "domain_error"),
        ("acos", {"min": 0.0, "max": 1.0000001}, "domain_error"),
        ("acos", {"min": -1.0, "max": 1.0}, "unknown"),
        ("sqrt", {"min": 0.0}, "unknown"),
    ],
)
def test_domain(at, by_hand, op, given, slug):
    assert slugs(at(op, (by_hand.fact(**given),), (by_hand.fact(nan=1),)))[1] == slug


def test_division_by_zero(at, by_hand):
    bad = (by_hand.fact(nan=1),)
    facts = at("div", (by_hand.fact(zeros=1), by_hand.fact(zeros=1)), bad)
    assert explain(facts)[1].evidence == ("the divisor of div holds 1 zero in 16 values; 0/0 is NaN",)
    assert slugs(at("div", (by_hand.fact(zeros=9), by_hand.fact()), bad))[1] == "unknown"


@pytest.mark.parametrize(
    ("op", "largest", "dtype", "slug"),
    [
        ("exp", 90.0, "float32", "overflow"),
        ("exp", 80.0, "float32", "unknown"),
        ("exp", 12.0, "float16", "overflow"),
        ("mm", 300.0, "float16", "overflow"),
        ("_to_copy", 70000.0, "float16", "overflow"),
        ("_to_copy", 60000.0, "float16", "unknown"),
        ("mystery", 300.0, "float16", "unknown"),
    ],
)
def test_overflow(at, by_hand, op, largest, dtype, slug):
    given = by_hand.fact(max=largest, absmax=largest, dtype=dtype)
    assert slugs(at(op, (given,), (by_hand.fact(posinf=2, dtype=dtype),)))[1] == slug


def test_overflow_says_the_true_value_and_the_limit(at, by_hand):
    given = by_hand.fact(max=300.0, absmax=300.0, dtype="float16")
    mechanism = explain(at("mul", (given,), (by_hand.fact(posinf=2, dtype="float16"),)))[1]
    assert mechanism.evidence == ("finite inputs up to 300 give a result beyond float16; float16 ends at 65504",)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"float64_finite": True, "float64_absmax": 1170724.0},
            "in float64 the result goes to 1.17e6; float16 ends at 65504",
        ),
        (
            {"float64_finite": True, "float64_absmax": 3.0},
            "in float64 the same op is finite; on the way float16 was left, which ends at 65504",
        ),
        ({"float64_finite": False}, None),
    ],
)
def test_float64_decides_whether_it_was_an_overflow(at, by_hand, extra, said):
    bad = (by_hand.fact(posinf=2, dtype="float16"),)
    mechanism = explain(at("mul", (by_hand.fact(dtype="float16"),), bad, extra=extra))[1]
    assert (mechanism.slug, mechanism.evidence) == (("overflow", (said,)) if said else ("unknown", ()))


@pytest.mark.parametrize(
    ("op", "zeros", "number", "slug"),
    [
        ("div", 0, 0, "division_by_zero"),
        ("div", 0, 2.0, "unknown"),
        ("pow", 1, -0.5, "division_by_zero"),
        ("pow", 0, -0.5, "unknown"),
    ],
)
def test_numbers_as_arguments(at, by_hand, op, zeros, number, slug):
    facts = at(op, (by_hand.fact(zeros=zeros),), (by_hand.fact(posinf=1),), extra={"arg1": number})
    assert slugs(facts)[1] == slug


def test_a_module_in_half_precision_is_only_likely(at, by_hand):
    facts = at(
        None, (by_hand.fact(dtype="float16"),), (by_hand.fact(posinf=2, dtype="float16"),), module_class="Linear"
    )
    assert (explain(facts)[1].slug, explain(facts)[1].strength) == ("overflow", LIKELY)


def test_nothing_overflows_from_bad_inputs(at, by_hand):
    assert slugs(at("mm", (by_hand.fact(posinf=1),), (by_hand.fact(nan=2),)))[1] == "unknown"


def test_a_mask_that_is_upside_down_is_to_be_inverted_and_another_is_not(at, by_hand):
    masked, bad = by_hand.fact(neginf=15), (by_hand.fact(nan=5),)
    told = {inverted: explain(at("_softmax", (masked,), bad, extra={"upside_down": True} if inverted else {}))[1]
            for inverted in (True, False)}  # fmt: skip
    assert told[True].suggestions[0].code.startswith("mask = ~mask")
    assert len(told[True].evidence) == 2
    assert not any("~mask" in (one.code or "") for one in told[False].suggestions)


def test_a_fully_masked_row(at, by_hand):
    masked, bad = by_hand.fact(neginf=4), (by_hand.fact(nan=4),)
    assert slugs(at("_softmax", (masked,), bad))[1] == "attention_fully_masked"
    assert slugs(at("_softmax", (by_hand.fact(neginf=4, posinf=1),), bad))[1] == "unknown"


def test_the_mean_of_nothing(at, by_hand):
    empty = by_hand.fact(shape=(0,), min=None, max=None, absmax=None)
    assert slugs(at("mean", (empty,), (by_hand.fact(nan=1, shape=()),)))[1] == "empty_reduction"


def test_the_gradient_of_sqrt_at_zero(at, by_hand):
    facts = at(
        "div", (by_hand.fact(), by_hand.fact(zeros=1)), (by_hand.fact(posinf=1),),
        node="SqrtBackward0", forward_op="aten.sqrt.default", phase="backward",
    )  # fmt: skip
    assert slugs(facts)[1] == "singular_gradient"


def test_a_bad_batch(at, by_hand):
    facts = at(None, (by_hand.fact("x", nan=4),), (), source="input")
    assert slugs(facts)[0] == "data_nonfinite"


@pytest.mark.parametrize(
    ("phase", "global_step", "absmax", "slug"),
    [
        ("init", None, 2.0, "init_nonfinite"),
        ("init", 0, 3e37, "uninitialised_memory"),
        ("init", 900, 2.0, "checkpoint_corruption"),
        ("checkpoint", None, 2.0, "checkpoint_corruption"),
        ("optimizer", None, 3e37, None),
    ],
)
def test_weights_that_began_badly(by_hand, phase, global_step, absmax, slug):
    bad = by_hand.fact("w", nan=2, absmax=absmax)
    origin = Origin("nan", 0, (0,), 0, global_step=global_step, phase=phase, inputs=(bad,))
    assert slugs(Facts(origin, "state", harm=Harm("parameter", 0, phase, (bad,), 1, 1)))[0] == slug


def test_a_collapsed_scale():
    facts = Facts(Origin("inf", 0, (0,), 5), "scale", skip=Skipped(5, 0.25, 30, 30))
    assert explain(facts)[0].evidence[0] == "GradScaler left out 30 steps in a row; the scale is 0.25"


def test_nothing_known_is_said_honestly():
    story, mechanism = explain(Facts(Origin("nan", 0, (0,), 5), "gradient"))
    assert story is None
    assert (mechanism.slug, mechanism.evidence, mechanism.strength) == ("unknown", (), 0)


def test_a_cast_says_where_to_stay_in_float32(at, by_hand):
    big = by_hand.fact(max=7e4, absmax=7e4)
    mechanism = explain(at("_to_copy", (big,), (by_hand.fact(posinf=1, dtype="float16"),)))[1]
    assert mechanism.suggestions[0].text.startswith("Keep this tensor in float32")


def test_an_exponential_is_bounded_in_the_users_line(at, by_hand):
    big = by_hand.fact(max=90.0, absmax=90.0)
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), text="y = torch.exp(z)", column=(4, 16))
    assert explain(facts)[1].suggestions[-1].code == "y = torch.exp(z.clamp(max=20))"


def test_an_exponential_in_float16_is_bounded_lower(at, by_hand):
    big = by_hand.fact(max=12.0, absmax=12.0, dtype="float16")
    facts = at("exp", (big,), (by_hand.fact(posinf=1, dtype="float16"),), text="y = torch.exp(z)", column=(4, 16))
    assert explain(facts)[1].suggestions[-1].code == "y = torch.exp(z.clamp(max=10))"


def test_a_cause_that_fails_costs_its_own_say_alone(at, by_hand, monkeypatch):
    def fails(_):
        message = "no such pattern"
        raise ValueError(message)

    fails.__module__ = "nandiag.analysis.causes.overflow"
    catalogue = (fails, *causes._catalogue())
    monkeypatch.setattr(causes, "_catalogue", lambda: catalogue)
    story, mechanism = explain(at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),)))
    assert (story, mechanism.slug) == (None, "log_of_zero")
    assert mechanism.evidence[-1] == f"{causes.BUG}: overflow failed (ValueError: no such pattern)"


def test_a_help_that_fails_leaves_the_mechanism_and_a_story_is_not_told_without_the_text(at, by_hand, monkeypatch):
    def by_text(facts):
        assert facts.origin.source is None, "a text that cannot be read"
        return overflow.explain(facts)

    def story(facts):
        assert facts.origin.source is None, "a text that cannot be read"
        return Cause("data_outlier", ("It was the batch.",), story=True)

    big = by_hand.fact(max=90.0, absmax=90.0)
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), text="y = torch.exp(z)", column=(4, 16))
    monkeypatch.setattr(causes, "_catalogue", lambda: (by_text, story))
    told, mechanism = explain(facts)
    assert (told, mechanism.slug) == (None, "overflow")
    assert "torch.exp(x.clamp(max=20))" in [one.code for one in mechanism.suggestions]
    assert [text.startswith(causes.BUG) for text in mechanism.evidence[-2:]] == [True, True]


def test_what_changed_a_buffer_is_no_optimizer():
    events = state(4, "moe.centroids", what="buffer", phase="forward", since=3)
    verdict = analyse(run(rank(0, events, world=1), ends=[ended(0, 0)], world=1)).verdict
    assert "which no optimizer does" in verdict.suggestions[0].text
    assert "optimizer's settings" not in verdict.suggestions[0].text


def test_a_line_that_left_a_gradient_and_was_not_run_again_is_one_of_two_to_look_at(by_hand):
    left = by_hand.found(5, method="tape", source="outside", phase="optimizer", inputs=(), facts={"complete": False})
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), left))).verdict
    assert verdict.suggestions[0].text.startswith("Look at this line, and at what goes into it")
