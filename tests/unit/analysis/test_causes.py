"""Each cause fits where its facts are and nowhere else."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, PROVEN
from nandiag.analysis.report import Origin
from nandiag.events import Harm, History, Looked, Skipped


def slugs(facts):
    story, mechanism = explain(facts)
    return story and story.slug, mechanism and mechanism.slug


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


def test_steady_gradients_are_no_divergence():
    assert slugs(at_end(history([1.0, 1.2, 0.9, 1.1, 1.0], [0.1] * 5)))[0] is None


def test_growing_gradients_do_not_explain_a_bad_start():
    norms = [1.0, 1.1, 1.0, 5.0, 80.0, 900.0, math.nan]
    assert slugs(at_end(history(norms, [0.1] * 7), phase="init"))[0] is None


def test_a_collapsed_scale():
    facts = Facts(Origin("inf", 0, (0,), 5), "scale", skip=Skipped(5, 0.25, 30, 30))
    assert explain(facts)[0].evidence[0] == "GradScaler left out 30 steps in a row; the scale is 0.25"


def test_nothing_known_is_said_honestly():
    story, mechanism = explain(Facts(Origin("nan", 0, (0,), 5), "gradient"))
    assert story is None
    assert (mechanism.slug, mechanism.evidence, mechanism.strength) == ("unknown", (), 0)


def began(by_hand, bad, *, step=0, basis="state", total=4):
    origin = Origin("nan", 0, (0,), step, phase="init", inputs=(bad,))
    look = Looked("found", "replay", step, source="parameter") if basis == "look" else None
    return explain(Facts(origin, basis, harm=Harm("parameter", step, "init", (bad,), 1, total), look=look))[0]


@pytest.mark.parametrize(
    ("nan", "first", "said"),
    [
        (8, (2, 0), "All rows from 2 on are NaN"),
        (16, (0, 0), "It is NaN throughout"),
        (8, (1, 0), None),
        (8, (2, 1), None),
        (1, (3, 3), None),
    ],
)
def test_rows_that_may_never_have_been_written(by_hand, nan, first, said):
    story = began(by_hand, by_hand.fact("w", nan=nan, first_bad=first))
    assert story.slug == "init_nonfinite"
    assert [text.partition(",")[0] for text in story.evidence[1:]] == ([said] if said else [])
    assert any("torch.empty or to_empty" in one.text for one in story.suggestions) is bool(said)


def test_a_model_all_of_which_is_bad_was_written(by_hand):
    bad = by_hand.fact("w", nan=16, first_bad=(0, 0))
    harm = Harm("parameter", 0, "init", (bad,) * 4, 4, 4)
    story = explain(Facts(Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,)), "state", harm=harm))[0]
    assert (story.slug, len(story.evidence)) == ("init_nonfinite", 1)


@pytest.mark.parametrize("basis", ["state", "look"])
def test_a_weight_first_seen_bad_within_the_run_is_not_said_to_be_bad_from_the_start(by_hand, basis):
    story = began(by_hand, by_hand.fact("w", nan=1), step=15, basis=basis)
    assert "step 15" in story.evidence[0]
    assert "No step" not in story.evidence[0]
    assert "between steps 14 and 15" in story.suggestions[0].text


@pytest.mark.parametrize(("kind", "line", "code"), [
    ("Linear", 'net.to_empty(device="cpu")',
     "[m.reset_parameters() for m in net.modules() if hasattr(m, 'reset_parameters')]"),
    ("ScaleNorm", 'net.to_empty(device="cpu")', "torch.nn.init.normal_(self.weight, std=0.02)"),
    ("Linear", "w = torch.empty(3, 3)", "torch.nn.init.normal_(self.weight, std=0.02)"),
])  # fmt: skip
def test_what_to_empty_left_unwritten_is_filled_by_modules_that_know_how(by_hand, kind, line, code):
    bad = by_hand.fact("layers.0.weight", nan=3)
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,), source=line, module_class=kind)
    told = {"weight": "layers.0.weight", "birth": "unwritten", "call": "empty_like"}
    look = Looked("found", "record", 0, source="parameter", facts=told)
    facts = Facts(origin, "look", harm=Harm("parameter", 0, "init", (bad,), 1, 4), look=look, born_bad=bad)
    assert explain(facts)[0].suggestions[0].code == code


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


def test_growing_gradients_are_no_calm_run(at, by_hand):
    story, _ = overflowing(at, by_hand, most=9e3, history=history([1.0, 1.1, 1.0, 80.0, 900.0], [0.1] * 5))
    assert story.slug == "gradient_explosion"


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


def test_a_tensor_that_nothing_wrote_to_is_told_from_one_that_was_filled_badly(by_hand):
    bad = by_hand.fact("w", nan=16, first_bad=(0, 0))
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,))
    for names, slug in (((), "init_nonfinite"), (("w",), "uninitialised_memory"), (("v",), "init_nonfinite")):
        harm = Harm("parameter", 0, "init", (bad,), 1, 4, untouched=names)
        assert explain(Facts(origin, "state", harm=harm))[0].slug == slug


def test_the_optimizers_state_is_what_to_check_where_it_came_bad(at, by_hand):
    bad = by_hand.fact("exp_avg_sq of 2.weight", nan=1)
    for what, code in (
        ("optimizer_state", "opt.state.values()"),
        ("parameter", "net.parameters()"),
        ("buffer", "net.state_dict()"),
    ):
        harm = Harm(what, 0, "checkpoint", (bad,), 1, 4, names={"optimizer": "opt", "model": "net"})
        story, _ = explain(Facts(Origin("nan", 0, (0,), 0, phase="checkpoint", inputs=(bad,)), "state", harm=harm))
        assert story.slug == "checkpoint_corruption"
        assert code in story.suggestions[-1].code
    harm = Harm("optimizer_state", 0, "init", (bad,), 1, 4)
    story, _ = explain(Facts(Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,)), "state", harm=harm))
    assert "optimizer.state.values()" in story.suggestions[0].code


def test_data_that_was_bad_before_the_first_step_is_bad_data(at, by_hand):
    made, extra = (by_hand.fact(nan=1),), {"birth": "op", "came_as": "Windows[341]"}
    story, _ = explain(at("fill_", (by_hand.fact(),), made, phase="data", extra=extra))
    assert story.slug == "data_nonfinite"
    assert "Windows[341]" in story.suggestions[0].text
    extra = {"birth": "file", "key": "x", "file": "rows.pt"}
    story, _ = explain(at(None, (), made, phase="data", source="outside", extra=extra))
    assert (story.slug, story.evidence) == ("data_nonfinite", ("It was bad already in x of rows.pt.",))


def test_a_collate_fn_may_have_made_a_bad_batch(at, by_hand):
    bad = by_hand.fact("x", nan=4, first_bad=(1, 2))
    story, _ = explain(at(None, (bad,), (), source="input", extra={"dataset": "Series"}))
    assert story.evidence[0] == "sample 1 of the batch is bad: it came from Series or its collate_fn."
    assert "collate_fn" in story.suggestions[0].text
    zero, extra = by_hand.fact(zeros=1), {"dataset": "Fields", "dataset_index": 5}
    for function, said in (("__getitem__", "The dataset made it"), ("collate", "the batch was fetched again")):
        story, _ = explain(
            at("div", (by_hand.fact(), zero), (by_hand.fact(nan=1),), phase="data", extra=extra, function=function)
        )
        assert said in story.evidence[0]


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({}, "uninitialised_memory"),
        ({"as_filled": True}, "uninitialised_memory"),
        ({"exposed": True}, "data_nonfinite"),
    ],
)
def test_data_that_torch_alone_was_given_to_write_and_left_are_unwritten(by_hand, more, cause):
    look = by_hand.found(
        3, method="record", phase="data", inputs=(), outputs=(by_hand.fact(nan=4),),
        facts={"birth": "unwritten", "call": "empty", **more},
    )  # fmt: skip
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(3), look, world=1), world=1))
    assert told.verdict.cause == cause


def test_where_every_op_is_watched_that_is_not_advised(by_hand):
    seen = {"source": "outside", "inputs": (by_hand.fact(nan=4),), "outputs": ()}
    for method, advised in (("replay", True), ("watch", False)):
        run = by_hand.run(by_hand.rank(0, by_hand.loss(3), by_hand.found(3, method=method, **seen), world=1), world=1)
        told = [one.code for one in analyse(run).verdict.suggestions]
        assert ("nandiag run --level op" in told) is advised


@pytest.mark.parametrize(
    ("source", "outputs", "code"),
    [
        ("t = torch.tensor([[float(v) for v in r] for r in rows])", {"nan": 1}, "t = torch.nan_to_num(t, nan=0.0)"),
        (
            "x = torch.tensor(rows)",
            {"nan": 1, "posinf": 2},
            "x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)",
        ),
        ("return torch.tensor(rows), more", {"posinf": 1}, None),
    ],
)
def test_numbers_that_python_read_bad_are_data(at, by_hand, source, outputs, code):
    bad = by_hand.fact(first_bad=(3, 1), **outputs)
    facts = at("lift_fresh", (bad,), (bad,), text=source, phase="data", file="train.py", line=7)
    story, *_ = explain(facts)
    assert (story.slug, story.strength) == ("data_nonfinite", LIKELY)
    assert story.evidence == ("torch took it as it is from Python's numbers; the first bad one is at [3, 1].",)
    assert story.suggestions[-1].code == code


def test_one_number_of_the_scripts_own_arithmetic_is_no_data(at, by_hand):
    bad = by_hand.fact(nan=1, shape=())
    facts = at("lift_fresh", (bad,), (bad,), text="scale = torch.tensor(total / count)", file="train.py", line=7)
    assert "data_nonfinite" not in [one.slug for one in explain(facts) if one is not None]
