"""Ops of the backward: singular gradients, hooks, nodes, what is left out there."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import PROVEN
from nandiag.events import Around, Meaning, Site
from tests.unit.analysis.ops.told import LINE, codes, mechanism, on


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


@pytest.mark.parametrize(
    ("inside", "code"),
    [
        ("(t / 2).clamp(-1, 1)", "(t / 2).clamp(-1 + 1e-6, 1 - 1e-6)"),
        ("torch.clamp(c, min=-1.0, max=1.0)", "c.clamp(-1 + 1e-6, 1 - 1e-6)"),
        ("c.clamp(0, 1)", "c.clamp(0, 1).clamp(-1 + 1e-6, 1 - 1e-6)"),
        ("c", "c.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ],
)
def test_a_bound_at_the_ends_themselves_is_changed_not_followed_by_another(at, by_hand, inside, code):
    placed = on(f"a = torch.acos({inside}).mean()", f"torch.acos({inside})")
    given, bad = (by_hand.fact(zeros=1),), (by_hand.fact(posinf=1),)
    facts = at("rsqrt", given, bad, node="AcosBackward0", forward_op="aten.acos.default", **placed)
    assert codes(facts)[0] == f"a = torch.acos({code}).mean()"


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


@pytest.mark.parametrize("line", ["y = x.pow(p).mean()", "y = (x ** p).mean()"])
def test_a_learnt_exponent_takes_the_logarithm_of_the_base(at, by_hand, line):
    text = line.removeprefix("y = ").removesuffix(".mean()").strip("()")
    text = text if "**" in text else f"{text})"
    given = {"node": "PowBackward1", "forward_op": "aten.pow.Tensor_Tensor", **on(line, text)}
    facts = at("log", (by_hand.fact(min=-0.25),), (by_hand.fact(nan=2),), **given)
    said = "the gradient of pow by its exponent takes the logarithm of the base, which goes to -0.25; that is NaN"
    assert (mechanism(facts).slug, mechanism(facts).evidence) == ("singular_gradient", (said,))
    assert codes(facts)[0] == line.replace("x", "x.clamp_min(1e-6)")


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


def test_in_a_backward_what_is_left_out_is_a_gradient(at, by_hand):
    line = on("return 0.5 * grad / root", "0.5 * grad / root")
    given = (by_hand.fact(), by_hand.fact(zeros=2))
    facts = at("div", given, (by_hand.fact(posinf=2),), node="SqrtFnBackward", phase="backward", **line)
    first = mechanism(facts).suggestions[0]
    assert first.text.startswith("Where root is 0, give 0 as gradient:")
    assert first.code == "return 0.5 * grad / torch.where(root != 0, root, torch.inf)"


def test_a_squashed_action_may_be_a_tanh_where_no_gradient_was_kept(at, by_hand):
    text = "    lp = lp - torch.log(1 - a.pow(2))\n"
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),), text=text, column=(14, 37))
    assert explain(facts)[1].suggestions[0].text.startswith("Where it is 1 - tanh(u)**2")


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
    assert (found.slug, found.suggestions[0].code) == ("domain_error", code)
    facts = at("sub", (by_hand.fact(nan=1), masked), (by_hand.fact(nan=2),), **rest, **on("a", "a"))
    assert mechanism(facts).slug != "domain_error"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("s.masked_fill(pad[:, None], float('-inf'))", "s = s.masked_fill(pad[:, None], -1e30)"),
        ("torch.where(keep, s, -torch.inf)", "s = torch.where(keep, s, -1e30)"),
        ("s + bias", None),
    ],
)
def test_minus_infinity_that_the_script_writes_is_replaced_where_it_does(at, by_hand, made, code):
    masked, rest = by_hand.fact(neginf=2), {"node": "LogsumexpBackward0", "forward_op": "aten.logsumexp.default"}
    facts = at("sub", (masked, masked), (by_hand.fact(nan=2),), phase="backward", **rest,
               **on("a = torch.logsumexp(s, -1)", "torch.logsumexp(s, -1)"))  # fmt: skip
    names = (Meaning("s", made, "t.py", 33),)
    site = replace(facts.look.site or Site(), around=Around(names=names))
    told = mechanism(replace(facts, look=replace(facts.look, site=site))).suggestions[1]
    assert told.code == code
    assert ("line 33" in told.text) is (code is not None)


@pytest.mark.parametrize(("factor", "told"), [(32768.0, True), (1.0, False), (4.0, False)])
def test_a_gradient_that_is_too_large_by_the_scripts_own_loss_scale(at, by_hand, factor, told):
    given, bad = by_hand.fact(max=1.87e6, absmax=1.87e6), by_hand.fact(posinf=3, dtype="float16")
    extra = {
        "loss_factor": factor, "loss_factor_at": ["a/train.py", 19], "float64_finite": True, "float64_absmax": 1.87e6,
        "autocast": True,
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


@pytest.mark.parametrize(("autocast", "shown"), [(True, True), (False, False)])
def test_a_scaler_is_shown_only_where_it_would_take_the_gradients(at, by_hand, autocast, shown):
    """Of weights in float16 GradScaler raises, and outside of autocast they are that."""
    given, bad = by_hand.fact(max=1.87e6, absmax=1.87e6), by_hand.fact(posinf=3, dtype="float16")
    extra = {
        "loss_factor": 32768.0, "loss_factor_at": ["a/train.py", 19], "float64_finite": True,
        "float64_absmax": 1.87e6, "autocast": autocast,
    }  # fmt: skip
    line = on("loss = (out - y).pow(2).mean()", "out - y")
    facts = at("_to_copy", (given,), (bad,), node="SubBackward0", forward_op="aten.sub.Tensor", extra=extra, **line)
    first = mechanism(facts).suggestions[0]
    assert first.text.startswith("The script multiplies its loss by 32768")
    assert ("torch.amp.GradScaler" in (first.code or "")) is shown
    assert ("leave out the update where a gradient is not finite" in first.text) is not shown


@pytest.mark.parametrize(("extra", "mean"), [({"loss_summed": True}, True), ({}, False)])
@pytest.mark.parametrize("autocast", [True, False])
def test_a_gradient_in_half_precision_is_told_of_the_loss_and_not_of_attention(at, by_hand, extra, mean, autocast):
    given, bad = by_hand.fact(dtype="float16", max=26.0, absmax=26.0), by_hand.fact(posinf=4, dtype="float16")
    known = {"float64_finite": True, "float64_absmax": 105086.0, "autocast": autocast, **extra}
    facts = at("mm", (given, given), (bad,), node="AddmmBackward0", forward_op="aten.addmm.default",
               phase="backward", extra=known)  # fmt: skip
    texts = [one.text for one in mechanism(facts).suggestions]
    assert not any("attention" in text for text in texts)
    assert any('reduction="mean"' in text for text in texts) is mean
    assert "bfloat16" in texts[0]


def test_a_point_that_no_value_was_seen_at_is_told_alone(at, by_hand):
    given = {"node": "PowBackward1", "forward_op": "aten.pow.Tensor_Tensor"}
    facts = at("where", (by_hand.fact(),), (by_hand.fact(nan=1),), **given)
    assert mechanism(facts).evidence == ("the gradient of pow is 0/0 at 0 for exponents below 1",)


@pytest.mark.parametrize(
    ("forward", "op", "given", "extra", "text", "clamp", "seen"),
    [
        ("acos", "rsqrt", {"min": -0.36}, {}, "torch.acos(c)", "c.clamp(-1 + 1e-6, 1 - 1e-6)", "1.166, outside"),
        ("asin", "rsqrt", {"min": -3.0}, {}, "torch.asin(c)", "c.clamp(-1 + 1e-6, 1 - 1e-6)", "2, outside"),
        ("acosh", "rsqrt", {"min": -0.75}, {}, "torch.acosh(c)", "c.clamp_min(1 + 1e-6)", "0.5, outside"),
        ("erfinv", "erfinv", {"max": 1.5}, {}, "torch.erfinv(c)", "c.clamp(-1 + 1e-6, 1 - 1e-6)", "1.5, outside"),
        ("pow", "pow", {"min": -0.25}, {"arg1": -0.5}, "c ** 0.5", "c.clamp_min(1e-6)", "-0.25; a negative"),
    ],
)
def test_what_lies_beyond_a_functions_domain_is_at_no_point_of_it(
    at, by_hand, forward, op, given, extra, text, clamp, seen
):
    placed = on(f"loss = torch.nansum({text})", text)
    bad = (by_hand.fact(nan=2),)
    named = {"node": f"{forward.capitalize()}Backward0", "forward_op": f"aten.{forward}.default", "phase": "backward"}
    facts = at(op, (by_hand.fact(**{"min": 0.5, "max": 0.9, **given}),), bad, extra=extra, **named, **placed)
    found = mechanism(facts)
    assert found.slug == "domain_error"
    assert seen in found.evidence[0]
    assert "0/0" not in str(found)
    assert (
        codes(facts)[-1]
        == f"loss = torch.nansum({text.replace('c', clamp) if '**' in text else text.replace('(c)', f'({clamp})')})"
    )


def test_a_logit_beyond_its_domain_is_told_by_its_own_argument(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(min=0.1, max=1.5))
    facts = at(
        "logit_backward", given, (by_hand.fact(nan=1),), node="LogitBackward0", forward_op="aten.logit.default",
        **on("y = torch.logit(p)", "torch.logit(p)"),
    )  # fmt: skip
    assert (mechanism(facts).slug, codes(facts)[-1]) == ("domain_error", "y = torch.logit(p.clamp(1e-6, 1 - 1e-6))")


@pytest.mark.parametrize(
    ("op", "line", "shape"),
    [
        ("_linalg_svd", "u, s, v = torch.linalg.svd(A, False)", (4, 6)),
        ("_linalg_eigh", "s, v = torch.linalg.eigh(A)", (5, 5)),
    ],
)
def test_equal_values_are_told_apart_by_what_is_the_same_in_each_step(at, by_hand, op, line, shape):
    expression = line.partition("= ")[2]
    node = "LinalgSvdBackward0" if "svd" in op else "LinalgEighBackward0"
    facts = at("div", (by_hand.fact(zeros=4), by_hand.fact(zeros=4)), (by_hand.fact(nan=2),), node=node,
               forward_op=f"aten.{op}.default", text=line, column=(line.index(expression), len(line)))  # fmt: skip
    code = explain(facts)[1].suggestions[0].code
    assert "rand" not in code
    names = {"torch": torch, "A": torch.eye(*shape, requires_grad=True)}
    exec(code, names)  # noqa: S102
    names["v"][:, 0].square().sum().backward()
    assert names["A"].grad.isfinite().all()


@pytest.mark.parametrize(
    ("line", "text", "power", "code"),
    [
        (
            "r = a / (x * x).sum(1).pow(0.5)",
            "(x * x).sum(1).pow(0.5)",
            -0.5,
            "a / (x * x).sum(1).clamp_min(1e-12).pow(0.5)",
        ),
        ("r = (x * x) ** 0.5", "(x * x) ** 0.5", -0.5, "(x * x).clamp_min(1e-12) ** 0.5"),
        ("r = x ** -1.5", "x ** -1.5", -2.5, "x.clamp_min(1e-6) ** -1.5"),
    ],
)
def test_a_base_that_is_next_to_nothing_is_near_the_point(at, by_hand, line, text, power, code):
    given = (by_hand.fact(min=-1e18, max=-0.4, absmax=1e18), by_hand.fact(min=522.0, max=1.6e21, absmax=1.6e21))
    known = {"power_of": {"min": 1e-43, "absmin": 1e-43, "absmax": 1e-7, "power": power}}
    wide = {"float64_finite": True, "float64_absmax": 1.9e39, "dtype": "float32"}
    facts = at(
        "mul", given, (by_hand.fact(neginf=2),), extra={**known, **wide}, node="PowBackward0",
        forward_op="aten.pow.Tensor_Scalar", **on(line, text),
    )  # fmt: skip
    found = mechanism(facts)
    said = (
        f"the gradient of pow is infinite at 0, and its base goes down to 1e-43: the base to the power {power} is huge"
    )
    assert (found.slug, found.strength, found.evidence[0]) == ("singular_gradient", PROVEN, said)
    assert codes(facts)[0] == f"r = {code}"


@pytest.mark.parametrize("known", [{"absmin": 1e-3, "power": -0.5}, {"absmin": 1e-43, "power": 0.5}, {}])
def test_a_base_that_is_not_near_it_overflows_all_the_same(at, by_hand, known):
    wide = {"float64_finite": True, "float64_absmax": 1.9e39, "dtype": "float32"}
    told = {"power_of": {"min": 0.0, "absmax": 1.0, **known}} if known else {}
    given = (by_hand.fact(absmax=1e20), by_hand.fact(absmax=1e20))
    node = {"node": "PowBackward0", "forward_op": "aten.pow.Tensor_Scalar"}
    assert mechanism(at("mul", given, (by_hand.fact(posinf=2),), extra={**told, **wide}, **node)).slug == "overflow"
