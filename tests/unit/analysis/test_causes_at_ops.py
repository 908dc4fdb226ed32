"""What happened at the op, told from the facts on it alone, and the advice that fits the user's line."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY, PROVEN
from nandiag.events import Around, Site, TensorFact, Written

LINE = {"file": "train.py", "line": 7}


def on(source, expression):
    first = source.index(expression)
    return {**LINE, "text": source, "column": (first, first + len(expression))}


def mechanism(facts):
    return explain(facts)[1]


def codes(facts):
    return [one.code for one in mechanism(facts).suggestions]


@pytest.mark.parametrize(
    ("node", "forward", "op", "given", "where"),
    [
        ("AcosBackward0", "acos", "rsqrt", 0, "-1 and 1"),
        ("SqrtBackward0", "sqrt", "div", 1, "0"),
        ("Atan2Backward0", "atan2", "reciprocal", 0, "(0, 0)"),
        ("AcoshBackward0", "acosh", "rsqrt", 0, "1"),
    ],
)
def test_singular_gradients(at, by_hand, node, forward, op, given, where):
    inputs = [by_hand.fact(), by_hand.fact()]
    inputs[given] = by_hand.fact(zeros=1)
    facts = at(op, tuple(inputs), (by_hand.fact(posinf=1),), node=node, forward_op=f"aten.{forward}.default", **LINE)
    found, said = mechanism(facts), f"the gradient of {forward} is infinite at {where}; 1 of 16 values is there"
    assert (found.slug, found.strength, found.evidence) == ("singular_gradient", PROVEN, (said,))


def test_the_angle_of_a_zero_vector_is_no_number(at, by_hand):
    zero = by_hand.fact(zeros=1)
    facts = at("div", (zero, zero), (by_hand.fact(nan=1),), node="HypotBackward0", forward_op="aten.hypot.default")
    assert mechanism(facts).evidence == ("the gradient of hypot is 0/0 at (0, 0); 1 of 16 values is there",)


def test_the_root_of_zero_by_a_power(at, by_hand):
    facts = at(
        "pow", (by_hand.fact(zeros=2),), (by_hand.fact(posinf=2),), extra={"arg1": -0.5},
        node="PowBackward0", forward_op="aten.pow.Tensor_Scalar", **on("return x ** p", "x ** p"),
    )  # fmt: skip
    assert mechanism(facts).slug == "singular_gradient"
    assert codes(facts)[0] == "return x.clamp_min(1e-6) ** p"


def test_a_gradient_that_is_finite_in_float64_is_not_singular(at, by_hand):
    bad = (by_hand.fact(posinf=1, dtype="float16"),)
    given = (by_hand.fact(dtype="float16"), by_hand.fact(dtype="float16"))
    facts = at("div", given, bad, node="SqrtBackward0", extra={"float64_finite": True, "float64_absmax": 1e6})
    assert mechanism(facts).slug == "overflow"


def test_an_overflow_in_backward(at, by_hand):
    given = by_hand.fact(max=300.0, absmax=300.0, dtype="float16")
    facts = at("mm", (given, given), (by_hand.fact(posinf=2, dtype="float16"),), node="MmBackward0")
    assert mechanism(facts).slug == "overflow"


def test_a_hook_of_the_user_is_explained_like_forward(at, by_hand):
    zero, bad = by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0), (by_hand.fact(nan=1),)
    place = on("x.register_hook(lambda g: g / g.norm())", "g / g.norm()")
    facts = at("div", (by_hand.fact(), zero), bad, node="CloneBackward0", phase="backward", **place)
    assert mechanism(facts).slug == "division_by_zero"
    assert codes(facts)[0] == "x.register_hook(lambda g: g / g.norm().clamp_min(1e-6))"


def test_a_node_that_is_not_mapped_is_no_code_of_the_user(at, by_hand):
    zero, bad = by_hand.fact(zeros=1), (by_hand.fact(nan=1),)
    place = on("loss.backward()", "loss.backward()")
    facts = at("div", (by_hand.fact(), zero), bad, node="StrangeBackward0", phase="backward", **place)
    assert mechanism(facts).slug == "unknown"


def test_the_users_own_backward(at, by_hand):
    place = on("    return g * odd(x)", "odd(x)")
    facts = at("odd", (by_hand.fact(),), (by_hand.fact(nan=1),), node="GateBackward", phase="backward", **place)
    story, found = explain(facts)
    assert (story.slug, found.slug) == ("custom_backward", "unknown")
    assert "Gate" in story.evidence[0]
    assert explain(at("odd", (by_hand.fact(),), (by_hand.fact(nan=1),), node="GateBackward0", **place))[0] is None


def test_ctc(at, by_hand):
    loss = TensorFact("float32", (8,), 8, posinf=1, min=2.0, max=3.0, absmax=3.0, first_bad=(6,))
    facts = at("_ctc_loss", (by_hand.fact(),), (loss, by_hand.fact(neginf=9)))
    found = mechanism(facts)
    assert found.slug == "ctc_infeasible"
    assert found.evidence[0] == "1 of 8 targets cannot be aligned: longer than the input"
    assert mechanism(at("_ctc_loss", (by_hand.fact(),), (by_hand.fact(nan=1), by_hand.fact()))).slug == "unknown"


def one_value(by_hand, **rest):
    return by_hand.fact(shape=(1,), min=0.5, max=0.5, absmax=0.5, **rest)


def test_the_spread_of_one_value(at, by_hand):
    bad = by_hand.fact(shape=(), nan=1, min=None, max=None, absmax=None)
    facts = at("std", (one_value(by_hand),), (bad,), **on("y = r.std() + 1e-6", "r.std()"))
    found = mechanism(facts)
    assert (found.slug, found.evidence) == ("empty_reduction", ("std of 1 value divides by 1 - 1: 0/0 is NaN",))
    assert codes(facts)[0] == "y = r.std(unbiased=False) + 1e-6"


@pytest.mark.parametrize(
    ("shape", "out", "correction", "slug"),
    [
        ((4, 1), (4,), None, "empty_reduction"),
        ((4, 2), (4,), None, "unknown"),
        ((4, 2), (4,), 2, "empty_reduction"),
        ((1,), (), 0, "unknown"),
    ],
)
def test_groups_that_are_too_small(at, by_hand, shape, out, correction, slug):
    extra = {} if correction is None else {"correction": correction}
    facts = at("var", (by_hand.fact(shape=shape),), (by_hand.fact(shape=out, nan=1),), extra=extra)
    assert mechanism(facts).slug == slug


def test_a_loss_all_of_whose_targets_are_ignored(at, by_hand):
    bad = (by_hand.fact(shape=(), nan=1),)
    found = mechanism(at("nll_loss_forward", (by_hand.fact(), by_hand.fact()), bad, extra={"arg4": -100}))
    assert (found.slug, "-100" in found.evidence[0]) == ("empty_reduction", True)


def test_any_mean_of_nothing(at, by_hand):
    empty = by_hand.fact(shape=(0, 4), min=None, max=None, absmax=None)
    assert mechanism(at("mse_loss", (empty, empty), (by_hand.fact(shape=(), nan=1),))).slug == "empty_reduction"


@pytest.mark.parametrize(
    ("low", "zeros", "code"),
    [(0.0, 1, "y = a / b.clamp_min(1e-6)"), (-1.0, 1, "y = a / torch.where(b == 0, 1e-6, b)")],
)
def test_a_divisor_that_may_be_negative_is_not_clamped(at, by_hand, low, zeros, code):
    facts = at(
        "div", (by_hand.fact(), by_hand.fact(zeros=zeros, min=low)), (by_hand.fact(nan=1),), **on("y = a / b", "a / b")
    )
    assert codes(facts) == [code]


@pytest.mark.parametrize(("number", "code"), [(0, "y = a / max(n, 1)"), (0.0, "y = a / max(n, 1e-6)")])
def test_a_number_as_divisor(at, by_hand, number, code):
    facts = at("div", (by_hand.fact(),), (by_hand.fact(nan=1),), extra={"arg1": number}, **on("y = a / n", "a / n"))
    assert codes(facts) == [code]


def test_a_vector_divided_by_its_norm_has_a_function_of_its_own(at, by_hand):
    place = on("return x / x.norm(dim=-1, keepdim=True)", "x / x.norm(dim=-1, keepdim=True)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **place)
    assert codes(facts)[1] == "return torch.nn.functional.normalize(x, dim=-1)"


def test_the_root_under_one(at, by_hand):
    place = on("return x * torch.rsqrt(m)", "torch.rsqrt(m)")
    facts = at("rsqrt", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **place)
    assert mechanism(facts).evidence == ("the input of rsqrt holds 1 zero in 16 values; 1/sqrt(0) is Inf",)
    assert codes(facts) == ["return x * torch.rsqrt(m + 1e-6)"]


def test_a_count_of_nothing_is_at_least_one(at, by_hand):
    nothing = by_hand.fact(zeros=1, shape=(), dtype="int64", min=0.0, max=0.0, absmax=0.0)
    place = on("loss = (each * seen).sum() / seen.sum()", "(each * seen).sum() / seen.sum()")
    facts = at("div", (by_hand.fact(shape=()), nothing), (by_hand.fact(nan=1, shape=()),), **place)
    assert mechanism(facts).slug == "division_by_zero"
    assert codes(facts) == ["loss = (each * seen).sum() / seen.sum().clamp_min(1)"]


def test_a_number_that_half_precision_rounded_to_zero(at, by_hand):
    zero = by_hand.fact(zeros=1, shape=(), dtype="bfloat16", min=0.0, max=0.0, absmax=0.0)
    facts = at("div", (zero, zero), (by_hand.fact(nan=1, shape=(), dtype="bfloat16"),))
    story, found = explain(facts)
    assert (story.slug, found.slug) == ("precision_underflow", "division_by_zero")
    assert "float32" in found.suggestions[0].text
    assert story.strength < found.strength


@pytest.mark.parametrize(("dtype", "slug"), [("float16", "precision_underflow"), ("float32", "optimizer_division")])
def test_an_update_that_divides_by_zero(at, by_hand, dtype, slug):
    given = [by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype), by_hand.fact(dtype=dtype, zeros=3)]
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    bad = (by_hand.fact(nan=3, dtype=dtype),)
    story, found = explain(at("addcdiv_", tuple(given), bad, extra=extra, phase="optimizer"))
    assert (story.slug, found.slug) == (slug, "division_by_zero")
    assert explain(at("addcdiv_", tuple(given), bad, phase="optimizer"))[0] is None or dtype == "float16"


def test_an_update_with_a_step_size_that_is_no_number(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["w"], "value": "nan"}
    story, _ = explain(at("addcdiv_", (by_hand.fact(),) * 3, (by_hand.fact(nan=1),), extra=extra, phase="optimizer"))
    assert (story.slug, story.strength) == ("lr_invalid", LIKELY)


def test_two_masks_that_are_added(at, by_hand):
    lowest = -3.4028234663852886e38
    mask = by_hand.fact(min=lowest, max=0.0, absmax=-lowest)
    story, found = explain(at("add", (mask, mask), (by_hand.fact(neginf=3),), extra={"float64_finite": True}))
    assert (story.slug, found.slug) == ("attention_fully_masked", "overflow")
    scores = by_hand.fact(min=lowest, max=9.0, absmax=-lowest)
    assert explain(at("add", (mask, scores), (by_hand.fact(neginf=3),), extra={"float64_finite": True}))[0] is None


@pytest.mark.parametrize(
    ("op", "low", "high", "arg1", "slug"),
    [
        ("pow", -2.0, 2.0, 0.5, "domain_error"),
        ("pow", -2.0, 2.0, 3, "unknown"),
        ("pow", 0.0, 2.0, 0.5, "unknown"),
        ("atanh", -1.0, 0.5, None, "domain_error"),
        ("atanh", -0.9, 0.9, None, "unknown"),
        ("logit", 0.1, 1.0, None, "domain_error"),
    ],
)
def test_domains_of_powers_and_poles(at, by_hand, op, low, high, arg1, slug):
    bad = by_hand.fact(nan=1) if op == "pow" else by_hand.fact(posinf=1)
    facts = at(op, (by_hand.fact(min=low, max=high),), (bad,), extra={} if arg1 is None else {"arg1": arg1})
    assert mechanism(facts).slug == slug


def test_the_log_of_a_negative_is_not_clamped_to_zero(at, by_hand):
    facts = at("log", (by_hand.fact(min=-1.0),), (by_hand.fact(nan=1),), **on("y = r.log()", "r.log()"))
    assert codes(facts)[0] == "y = r.clamp_min(1e-12).log()"


def test_log1p_at_minus_one(at, by_hand):
    assert mechanism(at("log1p", (by_hand.fact(min=-1.0),), (by_hand.fact(neginf=1),))).slug == "log_of_zero"


@pytest.mark.parametrize(
    ("op", "node", "slug"),
    [
        ("linalg_inv_ex", None, "linalg_degenerate"),
        ("linalg_vector_norm", None, "unknown"),
        ("div", "LinalgEighBackward0", "linalg_degenerate"),
    ],
)
def test_matrices(at, by_hand, op, node, slug):
    given = (by_hand.fact(), by_hand.fact(zeros=4))
    facts = at(op, given, (by_hand.fact(nan=1),), node=node, forward_op=node and "aten._linalg_eigh.default",
               extra={"float64_finite": False})  # fmt: skip
    assert mechanism(facts).slug == slug


def test_a_number_that_was_bad_itself_is_said(at, by_hand):
    facts = at("mystery", (by_hand.fact(),), (by_hand.fact(nan=1),), extra={"arg1": "inf", "float64_absmax": "inf"})
    assert mechanism(facts).evidence == ("a number that mystery was given is +inf",)


def test_what_came_from_code_that_was_not_run_again_is_not_blamed_on_its_user(at, by_hand):
    facts = at("mm", (by_hand.fact(nan=1),), (), source="outside")
    assert "the code that made it" in mechanism(facts).suggestions[0].text


def test_what_the_script_wrote_in_place_is_no_bad_sample(at, by_hand):
    facts = at("mul_", (by_hand.fact(nan=1),), (), source="input", extra={"written_in_place": "Tensor.mul_"})
    story, found = explain(facts)
    assert story is None
    assert "in place" in found.suggestions[0].text


def test_a_sample_that_its_dataset_breaks_has_the_dataset_named(at, by_hand):
    zero, extra = by_hand.fact(zeros=1), {"dataset": "Fields", "dataset_index": 512}
    story, found = explain(at("div", (by_hand.fact(), zero), (by_hand.fact(nan=1),), phase="data", extra=extra))
    assert (story.slug, found.slug) == ("data_nonfinite", "division_by_zero")
    assert "Fields[512]" in story.evidence[0]
    assert story.strength < found.strength


def test_an_exponential_that_float64_cannot_hold_either(at, by_hand):
    given = (by_hand.fact(min=-1846.0, max=1831.0, absmax=1846.0),)
    facts = at("exp", given, (by_hand.fact(posinf=98),), extra={"float64_finite": False})
    assert mechanism(facts).slug == "overflow"


@pytest.mark.parametrize(
    ("op", "inputs", "extra", "said"),
    [
        ("copy_", ({}, {"nan": 1, "shape": ()}), {}, "this line writes NaN"),
        ("fill_", ({},), {"arg1": "nan"}, "this line writes NaN"),
        ("masked_fill", ({}, {"dtype": "bool"}), {"arg2": "inf"}, "this line writes +Inf"),
        ("full", (), {"arg1": "nan"}, "this line writes NaN"),
        ("copy_", ({}, {"nan": 1}), {}, None),
        ("add", ({}, {"nan": 1, "shape": ()}), {}, None),
    ],
)
def test_a_number_that_the_script_writes_into_a_tensor(at, by_hand, op, inputs, extra, said):
    found = mechanism(at(op, tuple(by_hand.fact(**one) for one in inputs), (by_hand.fact(nan=1),), extra=extra))
    assert said in found.evidence if said else not any("writes" in text for text in found.evidence)
    assert ("This line writes" in found.suggestions[0].text) is (said is not None)


def test_a_divisor_that_is_a_root_is_guarded_within_it(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0))
    facts = at("div", given, (by_hand.fact(posinf=1),), **on("y = a / torch.sqrt(v)", "a / torch.sqrt(v)"))
    assert codes(facts) == ["y = a / torch.sqrt(v.clamp_min(1e-12))"]


def test_an_infinity_that_turned_into_nan_is_said_to_have_come_in(at, by_hand):
    came = (by_hand.fact(posinf=4), by_hand.fact())
    told = mechanism(at("addmm", came, (by_hand.fact(nan=2),))).suggestions[0].text
    assert told.startswith("+Inf went into addmm, and NaN came out")
    assert "nothing that was recorded" in mechanism(at("mystery", came[1:], (by_hand.fact(nan=2),))).suggestions[0].text


@pytest.mark.parametrize(("line", "slug"), [
    ("loss = F.cross_entropy(model(x), y)", "empty_reduction"), ("loss = total(x) / count(y)", "division_by_zero"),
])  # fmt: skip
def test_a_loss_that_is_made_of_smaller_ops_and_has_no_target(at, by_hand, line, slug):
    """Under ``loss_parallel`` the sum over targets is divided by their count in an op of its own."""
    zero = by_hand.fact(shape=(), zeros=1)
    facts = at("div", (zero, zero), (by_hand.fact(shape=(), nan=1),), **on(line, line.partition(" = ")[2]))
    assert mechanism(facts).slug == slug


def test_a_negative_running_variance_is_named(at, by_hand):
    one = by_hand.fact(shape=(16,))
    low = by_hand.fact("1.running_var", shape=(16,), min=-0.6)
    facts = at("native_batch_norm", (by_hand.fact(), one, one, one, low), (by_hand.fact(nan=8),), extra={"arg5": False})
    mechanism = explain(facts)[1]
    assert mechanism.slug == "domain_error"
    assert mechanism.evidence[0].startswith("1.running_var goes down to -0.6")
    sound = by_hand.fact("1.running_var", shape=(16,), min=0.1)
    facts = at("native_batch_norm", (by_hand.fact(), one, one, one, sound), (by_hand.fact(nan=8),))
    assert explain(facts)[1].slug == "unknown"


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        (["SoftmaxBackward0", "AddmmBackward0"], "F.log_softmax(scores, dim=-1)"),
        (["StackBackward0", "SoftmaxBackward0"], "F.log_softmax(scores, dim=-1)"),
        (["SigmoidBackward0"], "F.logsigmoid(scores)"),
        (["RsubBackward1", "SigmoidBackward0"], "F.logsigmoid(-scores)"),
        (["SubBackward0", "SigmoidBackward0"], None),  # of two sigmoids
        (["RsubBackward1", "PowBackward0", "TanhBackward0"], "2 * (math.log(2) - u - F.softplus(-2 * u))"),
        (["SumBackward1", "MulBackward0", "SoftmaxBackward0"], "torch.logsumexp(log_p, dim=-1)"),
        (["ReluBackward0"], None),
        ([], None),
    ],
)
def test_the_logarithm_in_one_step_is_that_of_what_made_its_input(at, by_hand, nodes, code):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),), extra={"made_by": nodes})
    codes = [one.code for one in explain(facts)[1].suggestions]
    assert codes == ([] if code is None else [code]) + ["x.clamp_min(1e-12).log()"]


@pytest.mark.parametrize(
    ("text", "expression", "code"),
    [
        ("    r = d / w\n", "d / w", "r = d / torch.where(w != 0, w, torch.inf)"),
        ("    r = (d - m) / self.w\n", "(d - m) / self.w", "r = (d - m) / torch.where(self.w != 0, self.w, torch.inf)"),
        ("    r = a / (1 - a)\n", "a / (1 - a)", "r = a / torch.where((1 - a) != 0, (1 - a), torch.inf)"),
        ("    r = d / w.sum(1)\n", "d / w.sum(1)",
         "divisor = w.sum(1); r = d / torch.where(divisor != 0, divisor, torch.inf)"),
        ("    return (w - m) / std, (t - m) / std\n", "(w - m) / std",
         "return (w - m) / torch.where(std != 0, std, torch.inf), (t - m) / torch.where(std != 0, std, torch.inf)"),
    ],
)  # fmt: skip
def test_what_is_no_zero_itself_is_left_out_where_it_is_divided_by_one(at, by_hand, text, expression, code):
    column = (text.index(expression), text.index(expression) + len(expression))
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=2)), (by_hand.fact(posinf=2),), text=text, column=column)
    first, second = explain(facts)[1].suggestions
    below = {"(1 - a)": "1 - a"}.get(expression.partition(" / ")[2], expression.partition(" / ")[2])
    said = f"Where {below} is 0, give 0: a small number in its place would make the quotient huge."
    assert (first.code, first.text) == (code, said)
    assert second.text.startswith("Or keep the divisor above the least")


def test_in_a_backward_what_is_left_out_is_a_gradient(at, by_hand):
    line = on("return 0.5 * grad / root", "0.5 * grad / root")
    given = (by_hand.fact(), by_hand.fact(zeros=2))
    facts = at("div", given, (by_hand.fact(posinf=2),), node="SqrtFnBackward", phase="backward", **line)
    first = mechanism(facts).suggestions[0]
    assert first.text.startswith("Where root is 0, give 0 as gradient:")
    assert first.code == "return 0.5 * grad / torch.where(root != 0, root, torch.inf)"


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("1.0 / var", "w = 1.0 / torch.where(var != 0, var, torch.inf)"),
        ("1.0 / counts", "w = 1.0 / counts.clamp_min(1)"),
    ],
)
def test_one_over_zero_is_left_out_like_any_other_quotient(at, by_hand, expression, code):
    given = (by_hand.fact(zeros=2, min=0.0, max=8.0, absmax=8.0),)
    facts = at("reciprocal", given, (by_hand.fact(posinf=2),), **on(f"w = {expression}", expression))
    assert codes(facts)[0] == code


@pytest.mark.parametrize(
    ("expression", "name", "told", "others"),
    [
        ("self.sum / self.count", "norm.count", "where it is set, updated or restored (a buffer", []),
        ("total / n_valid", None, "where it is set, updated or restored.", ["mean = total / n_valid.clamp_min(1)"]),
        ("sim / self.temperature", "temperature", "where it is set, updated or restored.", []),
        ("a / w.sum()", None, "what it is made of.", []),
    ],
)  # fmt: skip
def test_one_number_that_all_is_divided_by_is_no_small_number(at, by_hand, expression, name, told, others):
    given = (by_hand.fact(), by_hand.fact(name, shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    facts = at("div", given, (by_hand.fact(posinf=16),), **on(f"mean = {expression}", expression))
    why, *then = mechanism(facts).suggestions
    what = name or expression.split(" / ")[1]
    assert why.text.startswith(f"{what} is 0, and what it divides is not: look at {told}")
    assert [why.code, *(one.code for one in then)] == [None, *others]


@pytest.mark.parametrize(("name", "code"), [("count", "y = a / max(count, 1)"), ("scale", None)])
def test_a_python_number_that_is_no_small_number_either(at, by_hand, name, code):
    place = on(f"y = a / {name}", f"a / {name}")
    facts = at("div", (by_hand.fact(),), (by_hand.fact(posinf=16),), extra={"arg1": 0.0}, **place)
    assert codes(facts) == [None, *([code] if code else [])]


def test_a_bound_at_zero_is_raised(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    line = on("return sims / self.temperature.clamp(min=0)", "sims / self.temperature.clamp(min=0)")
    assert codes(at("div", given, (by_hand.fact(posinf=16),), **line))[0] == (
        "return sims / self.temperature.clamp(min=1e-2)"
    )
    line = on("d = d2.clamp_min(0).sqrt()", "d2.clamp_min(0).sqrt()")
    at_zero = (by_hand.fact(), by_hand.fact(zeros=3, min=0.0))
    facts = at("div", at_zero, (by_hand.fact(nan=3),), node="SqrtBackward0", forward_op="aten.sqrt.default", **line)
    assert codes(facts)[0] == "d = d2.clamp_min(1e-12).sqrt()"


def test_an_update_of_the_scripts_own_gets_an_eps(at, by_hand):
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    line = on("p.sub_(lr * m / v.sqrt())", "lr * m / v.sqrt()")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=3, min=0.0)), (by_hand.fact(nan=3),), extra=extra, **line)
    assert codes(facts) == ["p.sub_(lr * m / (v.sqrt() + 1e-8))"]


@pytest.mark.parametrize(
    ("op", "given", "expression", "said", "code"),
    [
        ("mul", ({"zeros": 4}, {"neginf": 4}), "logp.exp() * logp", "0 times -Inf is NaN: 4 zeros on the other side",
         "h = logp.exp() * logp.clamp_min(-1e30)"),
        ("mul", ({"posinf": 1}, {"zeros": 4}), "d * mask", "0 times +Inf is NaN: 4 zeros on the other side",
         "h = d.clamp_max(1e30) * mask"),
        ("sub", ({"neginf": 2}, {"neginf": 4}), "new - old", "-Inf less -Inf in the same place is NaN",
         "h = new.clamp_min(-1e30) - old.clamp_min(-1e30)"),
        ("div", ({"posinf": 2}, {"posinf": 4}), "w / w.max()", "+Inf over +Inf is NaN",
         "h = w.clamp_max(1e30) / w.max().clamp_max(1e30)"),
    ],
)  # fmt: skip
def test_infinities_that_have_no_product_sum_or_quotient(at, by_hand, op, given, expression, said, code):
    inputs = tuple(by_hand.fact(**one) for one in given)
    found = mechanism(at(op, inputs, (by_hand.fact(nan=4),), **on(f"h = {expression}", expression)))
    assert (found.slug, found.evidence, found.suggestions[0].code) == ("domain_error", (said,), code)
    own = [one.code for one in found.suggestions if "entropy" in one.text]
    assert own == (["torch.distributions.Categorical(logits=logp).entropy()"] if "exp" in expression else [])


def test_a_product_of_infinities_alone_is_not_explained_by_zeros(at, by_hand):
    both = (by_hand.fact(neginf=4), by_hand.fact(posinf=4))
    assert mechanism(at("mul", both, (by_hand.fact(nan=4),))).slug == "unknown"


@pytest.mark.parametrize(
    ("mask", "number", "dtype", "code"),
    [
        ("(1.0 - keep) * float('-inf')", "-inf", "float32",
         'h = torch.zeros_like(keep).masked_fill(keep == 0, float("-inf"))'),
        ("-math.inf * padding", "-inf", "float32",
         'h = torch.zeros_like(padding).masked_fill(padding != 0, float("-inf"))'),
        ("~keep * torch.inf", "inf", "bool",
         'h = torch.zeros_like(~keep, dtype=torch.float32).masked_fill((~keep) != 0, float("inf"))'),
        ("torch.mul(keep, NEG)", "-inf", "float32",
         'torch.zeros_like(mask).masked_fill(mask == 1, float("-inf"))'),
    ],
)  # fmt: skip
def test_a_mask_times_an_infinite_number_is_laid_in(at, by_hand, mask, number, dtype, code):
    given = (by_hand.fact(dtype=dtype, zeros=12, min=0.0, max=1.0, absmax=1.0),)
    out = (by_hand.fact(nan=12, neginf=4),)
    found = mechanism(at("mul", given, out, extra={"arg1": number}, **on(f"h = {mask}", mask)))
    shown = "+Inf" if number == "inf" else "-Inf"
    assert found.evidence == (f"0 times {shown} is NaN: 12 zeros on the other side",)
    assert (found.slug, found.suggestions[0].code) == ("domain_error", code)


def test_a_mask_that_leaves_nothing_out_is_one_too(at, by_hand):
    line = on("s = s + pad[:, None] * NEG_INF", "pad[:, None] * NEG_INF")
    given = (by_hand.fact(dtype="bool", zeros=16, min=0.0, max=0.0, absmax=0.0),)
    facts = at("mul", given, (by_hand.fact(nan=16),), extra={"arg1": "-inf"}, **line)
    assert codes(facts) == [
        's = s + torch.zeros_like(pad[:, None], dtype=torch.float32).masked_fill(pad[:, None] != 0, float("-inf"))'
    ]


def test_what_is_no_mask_times_an_infinite_number_is_not_laid_in(at, by_hand):
    facts = at("mul", (by_hand.fact(zeros=3),), (by_hand.fact(nan=3, posinf=5),), extra={"arg1": "inf"})
    found = mechanism(facts)
    assert (found.slug, found.suggestions[0].code) == ("domain_error", None)
    assert "makes the number" in found.suggestions[0].text


def test_a_tensor_of_infinities_times_the_number_zero(at, by_hand):
    facts = at(
        "mul", (by_hand.fact(neginf=3),), (by_hand.fact(nan=3),), extra={"arg1": 0.0}, **on("y = m * 0", "m * 0")
    )
    assert mechanism(facts).evidence == ("0 times -Inf is NaN",)


def test_an_average_with_an_infinite_weight(at, by_hand):
    line = on("a.lerp_(b, 1 - decay.item())", "a.lerp_(b, 1 - decay.item())")
    both = (by_hand.fact(), by_hand.fact())
    found = mechanism(at("lerp_", both, (by_hand.fact(posinf=8, neginf=8),), extra={"arg2": "inf"}, **line))
    assert (found.slug, found.evidence) == (
        "domain_error",
        ("lerp was given a weight of +inf: what comes out is infinite, or NaN",),
    )
    assert found.suggestions[0].code == "a.lerp_(b, min(max(1 - decay.item(), 0.0), 1.0))"
    assert mechanism(at("lerp_", both, (by_hand.fact(posinf=8),), extra={"arg2": 0.5}, **line)).slug != "domain_error"


@pytest.mark.parametrize(("high", "guard"), [(1.0, "clamp(1e-6, 1 - 1e-6)"), (7.0, "clamp_min(1e-6)")])
def test_a_value_at_the_end_of_a_distributions_support(at, by_hand, high, guard):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, max=high))
    line = on("loss = -model(x).log_prob(rate).mean()", "model(x).log_prob(rate)")
    found = mechanism(at("xlogy", given, (by_hand.fact(neginf=1),), **line))
    assert (found.slug, found.suggestions[0].code) == (
        "log_of_zero",
        f"loss = -model(x).log_prob(rate.{guard}).mean()",
    )


def test_xlogy_is_judged_by_what_it_takes_the_logarithm_of(at, by_hand):
    line = on("loss = rate - torch.xlogy(n, rate)", "torch.xlogy(n, rate)")
    zero = (by_hand.fact(min=0.0), by_hand.fact(zeros=2, min=0.0))
    assert codes(at("xlogy", zero, (by_hand.fact(neginf=1),), **line)) == [
        "loss = rate - torch.xlogy(n, rate.clamp_min(1e-12))"
    ]
    below = (by_hand.fact(min=0.0), by_hand.fact(min=-1.0))
    assert mechanism(at("xlogy", below, (by_hand.fact(nan=1),), **line)).slug == "domain_error"


def test_a_squashed_action_may_be_a_tanh_where_no_gradient_was_kept(at, by_hand):
    text = "    lp = lp - torch.log(1 - a.pow(2))\n"
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),), text=text, column=(14, 37))
    assert explain(facts)[1].suggestions[0].text.startswith("Where it is 1 - tanh(u)**2")


def test_where_an_optimizer_of_a_library_divides_its_eps_leads(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(), by_hand.fact(zeros=3))
    extra = {"reconstructed": True, "parameters": ["fc.weight"]}
    text = "    opt.step()\n"
    facts = at(
        "addcdiv_", given, (by_hand.fact(nan=3),), extra=extra, phase="optimizer", text=text, column=(4, 14)
    )  # fmt: skip
    assert (explain(facts)[0].leads, explain(facts)[0].follows) == (True, False)


@pytest.mark.parametrize(
    ("name", "expression", "dtype", "code"),
    [
        ("logsumexp", "torch.logsumexp(torch.stack(terms), 0)", "float32",
         "a[t] = torch.logsumexp(torch.stack(terms).clamp_min(-1e30), 0)"),
        ("logsumexp", "scores.logsumexp(-1)", "float16", "a[t] = scores.clamp_min(-1e4).logsumexp(-1)"),
        ("logaddexp", "torch.logaddexp(a, b)", "float32",
         "a[t] = torch.logaddexp(a.clamp_min(-1e30), b.clamp_min(-1e30))"),
    ],
)  # fmt: skip
def test_the_gradient_of_a_sum_of_exponentials_of_nothing(at, by_hand, name, expression, dtype, code):
    masked = by_hand.fact(neginf=2, dtype=dtype)
    rest = {"node": f"{name.capitalize()}Backward0", "forward_op": f"aten.{name}.default", "phase": "backward"}
    facts = at(
        "sub", (masked, masked), (by_hand.fact(nan=2, neginf=1),), **rest, **on(f"a[t] = {expression}", expression)
    )
    found = mechanism(facts)
    slug = "attention_fully_masked" if name == "logsumexp" else "domain_error"  # of two numbers there is no row
    assert (found.slug, found.suggestions[0].code) == (slug, code)
    facts = at("sub", (by_hand.fact(nan=1), masked), (by_hand.fact(nan=2),), **rest, **on("a", "a"))
    assert mechanism(facts).slug != "attention_fully_masked"


@pytest.mark.parametrize(
    ("said", "line", "expression", "code"),
    [
        ("divide by zero encountered in log", "x = np.log(prices)", "np.log(prices)",
         "x = np.log(np.maximum(prices, 1e-12))"),
        ("invalid value encountered in divide", "x = (x - m) / s", "(x - m) / s", "x = (x - m) / np.maximum(s, 1e-6)"),
        ("divide by zero encountered in power", "w = (n * p[i]) ** -b", "(n * p[i]) ** -b",
         "w = np.maximum(n * p[i], 1e-6) ** -b"),
        ("invalid value encountered in power", "lr = top * np.power(left, 0.9)", "np.power(left, 0.9)",
         "lr = top * np.power(np.maximum(left, 1e-6), 0.9)"),
        ("overflow encountered in exp", "w = np.exp(z)", "np.exp(z)", None),
    ],
)  # fmt: skip
def test_a_line_that_numpy_warned_of(at, by_hand, said, line, expression, code):
    extra = {"numpy": said, "heard": True}
    story, _ = explain(at(None, (), (by_hand.fact(nan=2),), extra=extra, phase="data", **on(line, expression)))
    assert (story.slug, story.evidence, story.suggestions[0].code) == ("data_nonfinite", (f"numpy says: {said}",), code)


@pytest.mark.parametrize(("low", "first"), [(-0.018, "It is made of weights"), (-1e-7, "Find out why")])
def test_what_was_trained_below_zero_is_no_rounding(at, by_hand, low, first):
    given = by_hand.fact(min=low, max=low)
    facts = at("log", (given,), (by_hand.fact(nan=16),), extra={"of_weights": True}, **on("n = s.log()", "s.log()"))
    assert mechanism(facts).suggestions[0].text.startswith(first)


@pytest.mark.parametrize(
    ("expression", "advised"),
    [
        ("(s[1] / s[2] - mean ** 2).sqrt()", True), ("torch.sqrt(sq - m * m)", True), ("(a - b).sqrt()", False),
        ("(sq - mean.square()).sqrt()", True), ("v.sqrt()", False),
    ],
)  # fmt: skip
def test_a_difference_of_squares_is_told_to_lose_its_digits(at, by_hand, expression, advised):
    facts = at("sqrt", (by_hand.fact(min=-5e-4),), (by_hand.fact(nan=1),), **on(f"std = {expression}", expression))
    texts = [one.text for one in mechanism(facts).suggestions]
    assert any("loses its digits" in text for text in texts[:1]) is advised
    assert any("Find out why" in text for text in texts)


@pytest.mark.parametrize(("expression", "top", "eps"), [
    ("total / counts", 8.0, "1"), ("total / counts", 8.5, "1e-6"), ("total / spread", 8.0, "1e-6"),
])  # fmt: skip
def test_a_divisor_of_whole_numbers_that_is_called_a_count(at, by_hand, expression, top, eps):
    given = (by_hand.fact(), by_hand.fact(zeros=2, min=0.0, max=top))
    facts = at("div", given, (by_hand.fact(nan=2),), **on(f"m = {expression}", expression))
    assert codes(facts)[0] == f"m = {expression}.clamp_min({eps})"


def test_an_overflow_by_a_divisor_next_to_nothing(at, by_hand):
    given = (by_hand.fact(max=3e18), by_hand.fact(min=2.7e-21))
    line = on("slope = (h / w).gather(1, k)", "h / w")
    facts = at("div", given, (by_hand.fact(posinf=1),), extra={"float64_finite": True}, node="DivBackward0", **line)
    found = mechanism(facts)
    assert (found.slug, codes(facts)[0]) == ("overflow", "slope = (h / w.clamp_min(1e-6)).gather(1, k)")


@pytest.mark.parametrize(("source", "told"), [("n = v.sqrt()", False), ("n = torch.where(v > 0, v.sqrt(), v)", True)])
def test_a_where_is_spoken_of_where_there_is_one(at, by_hand, source, told):
    given = (by_hand.fact(), by_hand.fact(zeros=3, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=3),), node="SqrtBackward0", forward_op="aten.sqrt.default",
               **on(source, "v.sqrt()"))  # fmt: skip
    assert any("torch.where" in one.text for one in mechanism(facts).suggestions) is told


@pytest.mark.parametrize(("extra", "advised"), [
    ({}, True), ({"dataset": "Clicks", "dataset_index": None}, True), ({"dataset": "Rows", "dataset_index": 7}, False),
    ({"came_in": "table.py:9"}, False),
])  # fmt: skip
def test_data_that_nothing_is_known_of_may_be_watched_as_they_are_made(at, by_hand, extra, advised):
    story, _ = explain(at("addmm", (by_hand.fact("x", nan=2),), (by_hand.fact(nan=2),), source="input", extra=extra))
    assert story.slug == "data_nonfinite"
    assert any(one.code == "nandiag run --level op" for one in story.suggestions) is advised


@pytest.mark.parametrize(("said", "slug"), [
    ("invalid value encountered in scalar divide", "division_by_zero"), ("overflow encountered in exp", "overflow"),
    ("divide by zero encountered in log", "log_of_zero"), ("invalid value encountered in log10", "domain_error"),
    ("invalid value encountered in power", "domain_error"), ("divide by zero encountered in power", "division_by_zero"),
])  # fmt: skip
def test_a_number_of_numpys_is_no_data(at, by_hand, said, slug):
    extra = {"numpy": said, "heard": True, "number": True, "arg1": "nan"}
    story, found = explain(at("mul", (), (by_hand.fact(nan=1),), extra=extra, phase="loss", **on("r = a / b", "a / b")))
    assert (story, found.slug, found.evidence[0]) == (None, slug, f"numpy says: {said}")
    if slug == "division_by_zero":
        assert found.suggestions[0].code == "r = a / np.maximum(b, 1e-6)"


def test_a_count_in_half_precision_was_rounded_to_no_zero(at, by_hand):
    given = (by_hand.fact(zeros=2, min=0.0, max=8.0, dtype="float16"),)
    line = on("weight = 1.0 / counts", "1.0 / counts")
    found = mechanism(at("reciprocal", given, (by_hand.fact(posinf=2, dtype="float16"),), **line)).suggestions
    assert [one.code for one in found] == ["weight = 1.0 / counts.clamp_min(1)"]
    assert "float16" not in found[0].text


def test_a_mask_beyond_half_precision_is_given_the_least_number_of_it(at, by_hand):
    line = on("s = s + padding.to(s.dtype) * -1e9", "padding.to(s.dtype) * -1e9")
    given = (by_hand.fact(dtype="float16", zeros=10, min=0.0, max=1.0, absmax=1.0),)
    out = (by_hand.fact(dtype="float16", neginf=6, min=0.0, max=0.0, absmax=0.0),)
    extra = {"arg1": -1e9, "float64_finite": True, "float64_absmax": 1e9}
    found = mechanism(at("mul", given, out, extra=extra, **line))
    assert found.slug == "overflow"
    assert found.suggestions[0].code == "s = s + padding.to(s.dtype) * torch.finfo(torch.float16).min"
    assert "masked all over" in found.suggestions[0].text


@pytest.mark.parametrize(("trained", "code"), [
    (False, "r = torch.log((price + 1e-12) / (yesterday + 1e-12))"),
    (True, "r = torch.log((price / yesterday).clamp_min(1e-12))"),
])  # fmt: skip
def test_the_logarithm_of_a_ratio_of_data_has_both_sides_above_zero(at, by_hand, trained, code):
    line = on("r = torch.log(price / yesterday)", "torch.log(price / yesterday)")
    given = (by_hand.fact(zeros=1, min=0.0),)
    found = codes(at("log", given, (by_hand.fact(neginf=1),), extra={"of_weights": trained}, **line))
    assert found[0] == code
    assert "r = torch.log((price / yesterday).clamp_min(1e-12))" in found  # where only what is above can be 0


@pytest.mark.parametrize(("factor", "told"), [(32768.0, True), (1.0, False), (4.0, False)])
def test_a_gradient_that_is_too_large_by_the_scripts_own_loss_scale(at, by_hand, factor, told):
    given, bad = by_hand.fact(max=1.87e6, absmax=1.87e6), by_hand.fact(posinf=3, dtype="float16")
    extra = {
        "loss_factor": factor, "loss_factor_at": ["a/train.py", 19], "float64_finite": True, "float64_absmax": 1.87e6,
    }  # fmt: skip
    line = on("loss = (out - y).pow(2).mean()", "out - y")
    facts = at("_to_copy", (given,), (bad,), node="SubBackward0", forward_op="aten.sub.Tensor", extra=extra, **line)
    found = mechanism(facts)
    assert found.evidence[0].startswith("in float64 the gradient goes to 1.87e6")
    assert any("GradScaler" in (one.code or "") for one in found.suggestions) is told
    named = mechanism(replace(facts, harm=replace(by_hand.gradient(3), names={"optimizer": "self.opt"})))
    assert any("scaler.step(self.opt)" in (one.code or "") for one in named.suggestions) is told
    assert not any("half()" in (one.code or "") for one in found.suggestions)
    texts = [one.text for one in found.suggestions]
    assert any("by 32768 before backward() at train.py:19; without that the gradient goes to 57" in one
               for one in texts) is told  # fmt: skip


def test_infinities_less_their_mean_are_no_masked_row(at, by_hand):
    line = "    return h * torch.sigmoid(g * (top - top.mean()))\n"
    given = (by_hand.fact(shape=(30,), neginf=1), by_hand.fact(shape=(), neginf=1, min=None, max=None, absmax=None))
    facts = at("sub", given, (by_hand.fact(shape=(30,), nan=1, posinf=29),), **on(line, "top - top.mean()"))
    found = mechanism(facts)
    assert (found.slug, codes(facts)) == ("domain_error", ["top = top.masked_fill(top == -torch.inf, 0.0)"])
    assert "its mean is -inf" in found.suggestions[0].text


def test_a_criterion_of_the_scripts_own_is_set_and_its_names_are_told(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=(4, 9)))
    facts = at("_ctc_loss", given, (by_hand.fact(shape=(4,), posinf=1),), module_class="CTCLoss",
               **on("loss = self.criterion(logp, y, ol, yl)", "self.criterion(logp, y, ol, yl)"))  # fmt: skip
    around = Around(written=(Written("self.criterion", (34,)),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert codes(facts) == [
        "repeats = yl.new_tensor([(one[:n].diff() == 0).sum() for one, n in zip(y, yl)])\nol >= yl + repeats",
        "self.criterion.zero_infinity = True  # behind line 34",
    ]


PADDED, LINED = torch.tensor([[5, 5, 2, 0], [3, 4, 4, 4], [1, 0, 0, 0]]), torch.tensor([5, 5, 2, 3, 4, 4, 4, 1])
CTC = {"frames": (4, 5, 1), "lengths": (3, 4, 1)}


@pytest.mark.parametrize("call", [
    "F.ctc_loss(logp, text, frames, lengths)",
    "self.criterion(logp, text, input_lengths=frames, target_lengths=lengths)",
])  # fmt: skip
@pytest.mark.parametrize("text", [PADDED, LINED])
@pytest.mark.parametrize("listed", [True, False])
def test_which_targets_fit_is_told_by_lines_that_run(at, by_hand, call, text, listed):
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=tuple(text.shape)))
    module = "CTCLoss" if "criterion" in call else None
    facts = at("_ctc_loss", given, (by_hand.fact(shape=(3,), posinf=1),), module_class=module,
               **on(f"loss = {call}", call))  # fmt: skip
    kind = "IntList" if listed else "Tensor"
    facts = replace(facts, origin=replace(facts.origin, op=f"aten._ctc_loss.{kind}"))
    words = {name: one if listed else torch.tensor(one) for name, one in CTC.items()}
    *made, condition = codes(facts)[0].split("\n")
    known = {**words, "text": text, "torch": torch}
    exec("\n".join(made), known)  # noqa: S102
    assert eval(condition, known).tolist() == [True, False, True]  # noqa: S307


@pytest.mark.parametrize(
    ("use", "mended"),
    [
        ("return u / u.norm(dim=-1, keepdim=True)", "return u / u.norm(dim=-1, keepdim=True).clamp_min(1e-6)"),
        ("return u / torch.norm(u)", "return u / torch.norm(u).clamp_min(1e-6)"),
        ("return u / v.norm()", None),
        ("return u.norm()", None),
    ],
)
def test_what_a_guard_leaves_at_0_is_not_divided_by_its_norm_unsaid(at, by_hand, use, mended):
    given = (by_hand.fact(zeros=4), by_hand.fact(dtype="int64", zeros=1, min=0.0, max=5.0))
    facts = at("div", given, (by_hand.fact(nan=4),), **on("u = (s / n[:, None]) @ w", "s / n[:, None]"))
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(uses=(use,)))))
    assert codes(facts) == ["u = (s / n[:, None].clamp_min(1)) @ w", *([mended] if mended else [])]


def by_zero(at, by_hand, line, expression, *, op="div", nan=0, zero=None, **more):
    zero = zero or by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0)
    given = (zero,) if op == "reciprocal" else (by_hand.fact(), zero)
    bad = by_hand.fact(nan=1) if nan else by_hand.fact(posinf=1)
    return at(op, given, (bad,), **on(line, expression), **more)


def test_an_average_of_nothing_is_left_out(at, by_hand):
    line = "p.mul_(self.seen / total)"
    facts = by_zero(at, by_hand, line, "self.seen / total", op="reciprocal", phase="optimizer", function="average")
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends=""))))
    assert codes(facts) == ["if total == 0: return"]
    facts = by_zero(at, by_hand, "s = seen / total", "seen / total", op="reciprocal", phase="optimizer")
    assert codes(facts)[0] == "s = seen / total.clamp_min(1e-6)"


def test_a_division_by_method_is_guarded_in_the_scripts_own_words(at, by_hand):
    line = "p.grad.div_(scale)"
    assert codes(by_zero(at, by_hand, line, line, nan=1))[0] == "p.grad.div_(scale.clamp_min(1e-6))"
    line = "y = torch.div(a, b + c)"
    assert codes(by_zero(at, by_hand, line, line[4:], nan=1))[0] == "y = torch.div(a, (b + c).clamp_min(1e-6))"


def test_a_deviation_at_birth_is_not_made_huge(at, by_hand):
    line = "std = 0.02 / depth.sqrt()"
    facts = by_zero(at, by_hand, line, "0.02 / depth.sqrt()", extra={"birth": "op"}, phase="init")
    assert codes(facts) == [None]
    assert "clamp_min" in codes(by_zero(at, by_hand, line, "0.02 / depth.sqrt()"))[0]


def test_a_number_without_end_that_is_no_mask(at, by_hand):
    zeros = by_hand.fact(zeros=16, min=0.0, max=0.0)
    line = "p.grad.mul_(scale)"
    facts = at("mul", (zeros,), (by_hand.fact(nan=16),), extra={"arg1": "inf"}, **on(line, line))
    (only,) = mechanism(facts).suggestions
    assert (only.text.partition(",")[0], only.code) == ("Look at what makes scale", None)
    line = 'y = mask * float("-inf")'
    facts = at("mul", (zeros,), (by_hand.fact(nan=16),), extra={"arg1": "-inf"}, **on(line, line[4:]))
    assert "masked_fill" in codes(facts)[0]


@pytest.mark.parametrize(
    ("base", "exponent", "slug"),
    [
        ({"zeros": 3, "min": 0.0, "absmax": 2.2e13}, {"min": 2.995}, "overflow"),
        ({"min": 1e-30, "absmin": 1e-30, "absmax": 0.5}, {"min": -2.0}, "overflow"),
        ({"zeros": 3, "min": 0.0, "absmax": 2.2e13}, {"min": -1.0, "max": 9.0}, "unknown"),
        ({"zeros": 3, "min": 0.0, "absmax": 2.2e13}, {"min": -1.0, "max": 2.0}, "division_by_zero"),
    ],
)
def test_a_power_to_a_tensor_overflows_but_where_it_may_be_of_zero(at, by_hand, base, exponent, slug):
    given = (by_hand.fact(**base), by_hand.fact(shape=(1,), **exponent))
    assert mechanism(at("pow", given, (by_hand.fact(posinf=3),))).slug == slug
