"""An exponential that left its dtype: torch's own form of the line, and no wider dtype that it would leave as well."""

import re
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.report import Origin
from nandiag.events import Around, Site
from tests.unit.analysis.mends.told import placed

CALLS = (
    "torch.exp(h)",
    "torch.exp(s)",
    "torch.exp(a * b)",
    "torch.exp(-z)",
    "torch.exp(z)",
    "h.exp()",
    "s.exp()",
    "(2 * a).exp()",
    "a.exp()",
)


def on(line, expression):
    first = line.index(expression)
    return {"text": f"    {line}\n", "column": (first + 4, first + 4 + len(expression))}


def origin(line, expression):
    given = on(line, expression)
    return Origin("inf", 0, (0,), 5, source=given["text"], column=given["column"])


@pytest.mark.parametrize(
    ("line", "name", "code"),
    [
        ("return f(torch.log(1 + torch.exp(h))) + x", "softplus", "return f(torch.nn.functional.softplus(h)) + x"),
        ("y = torch.log1p(h.exp())", "softplus", "y = torch.nn.functional.softplus(h)"),
        ("y = (torch.exp(a * b) + 1).log()", "softplus", "y = torch.nn.functional.softplus(a * b)"),
        ("p = torch.exp(s) / torch.exp(s).sum(-1, keepdim=True)", "softmax", "p = torch.softmax(s, dim=-1)"),
        ("p = s.exp() / s.exp().sum(dim=1, keepdim=True)", "softmax", "p = torch.softmax(s, dim=1)"),
        ("n = torch.log(torch.exp(s).sum(1))", "logsumexp", "n = torch.logsumexp(s, dim=1)"),
        ("n = torch.log(torch.sum(torch.exp(s), dim=1))", "logsumexp", "n = torch.logsumexp(s, dim=1)"),
        ("n = s.exp().sum(1, keepdim=True).log()", "logsumexp", "n = torch.logsumexp(s, dim=1, keepdim=True)"),
        ("g = 1 / (1 + torch.exp(-z))", "sigmoid", "g = torch.sigmoid(z)"),
        ("g = torch.exp(z) / (1 + torch.exp(z))", "sigmoid", "g = torch.sigmoid(z)"),
        ("y = (torch.exp(z) - torch.exp(-z)) / (torch.exp(-z) + torch.exp(z))", "tanh", "y = torch.tanh(z)"),
        ("y = -torch.log(a.exp() + b.exp()).mean()", "logaddexp", "y = -torch.logaddexp(a, b).mean()"),
        ("y = a.exp() / (b.exp() + a.exp())", "sigmoid", "y = torch.sigmoid(a - b)"),
        ("y = (2 * a).exp() / ((2 * a).exp() + (b - c).exp())", "sigmoid", "y = torch.sigmoid((2 * a) - (b - c))"),
    ],
)
def test_what_torch_has_a_function_for(line, name, code):
    called = next(one for one in CALLS if one in line)
    assert forms.stable(origin(line, called)) == forms.Stable(name, code)


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.exp(h)",
        "y = torch.log(2 + torch.exp(h))",
        "p = torch.exp(s) / torch.exp(z).sum(-1)",
        "p = torch.exp(s) / torch.exp(s).sum()",
        "p = torch.exp(s) / torch.exp(s).sum(-1)",
        "p = torch.exp(s) / torch.exp(s).sum((1, 2), keepdim=True)",
        "g = 1 / (1 + torch.exp(z))",
        "y = (torch.exp(a - b) - torch.exp(-a - b)) / (torch.exp(a - b) + torch.exp(-a - b))",
        "y = (torch.exp(-a) - torch.exp(a)) / (torch.exp(-a) + torch.exp(a))",
        "y = a.exp() / (b.exp() + c.exp())",
        "y = torch.log(a.exp() - b.exp())",
        "if torch.exp(h)",
        "y = torch.log(1 + größe.exp())",
    ],
)
def test_what_is_no_such_form(line):
    assert forms.stable(origin(line, line)) is None


def test_a_form_elsewhere_on_the_line_is_left():
    line = "y = torch.log(1 + torch.exp(a)) + torch.exp(b)"
    assert forms.stable(origin(line, "torch.exp(b)")) is None


def overflow(at, by_hand, line, expression, **given):
    dtype, extra = given.get("dtype", "float32"), given.get("extra", {})
    one = by_hand.fact(max=given.get("max", 900.0), absmax=900.0, dtype=dtype)
    facts = at("exp", (one,), (by_hand.fact(posinf=1, dtype=dtype),), extra=extra, **on(line, expression))
    return explain(facts)[1].suggestions


def test_a_form_of_torch_takes_the_place_of_a_bound_that_would_change_the_function(at, by_hand):
    (only,) = overflow(at, by_hand, "y = torch.log(1 + torch.exp(h))", "torch.exp(h)")
    assert only.code == "y = torch.nn.functional.softplus(h)"


def test_a_line_that_may_be_a_softmax(at, by_hand):
    first, second = overflow(at, by_hand, "e = torch.exp(score)", "torch.exp(score)")
    assert (first.code, second.code) == ("torch.softmax(score, dim=-1)", "e = torch.exp(score.clamp(max=20))")
    (only,) = overflow(at, by_hand, "z = m + n * torch.exp(v)", "torch.exp(v)")
    assert only.code == "z = m + n * torch.exp(v.clamp(max=20))"


@pytest.mark.parametrize(
    ("extra", "largest", "wider"),
    [
        ({"float64_finite": True, "float64_absmax": 3.35e84}, 194.0, False),
        ({"float64_finite": True, "float64_absmax": 3.35e30}, 70.0, True),
        ({"float64_finite": False}, 900.0, False),
        ({}, 194.0, False),
        ({}, 70.0, True),
    ],
)
def test_no_wider_dtype_that_would_be_left_as_well(at, by_hand, extra, largest, wider):
    told = overflow(at, by_hand, "e = torch.exp(score)", "torch.exp(score)", dtype="float16", extra=extra, max=largest)
    assert any("bfloat16" in one.text or "float32" in one.text for one in told) is wider


def test_a_product_beyond_float32_is_not_sent_to_bfloat16(at, by_hand):
    half, extra = by_hand.fact(dtype="float16"), {"float64_finite": True, "float64_absmax": 1e40}
    found = explain(at("mul", (half, half), (by_hand.fact(posinf=1, dtype="float16"),), extra=extra))[1]
    assert [one.code for one in found.suggestions] == [None]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("p = e / e.sum(-1, keepdim=True)", "torch.softmax(score, dim=-1)"),
        ("p = e / e.sum(-1)", None),
        ("p = e / d.sum(-1, keepdim=True)", None),
    ],
)
def test_a_share_of_a_sum_that_is_zero_may_be_a_softmax(at, by_hand, line, code):
    given = (by_hand.fact(zeros=4, min=0.0), by_hand.fact(zeros=1, min=0.0))
    told = explain(at("div", given, (by_hand.fact(nan=4),), **on(line, line.partition("= ")[2])))[1].suggestions
    assert [one.code for one in told[1:]] == ([code] if code else [])


@pytest.mark.parametrize(
    ("line", "op", "code"),
    [
        ("y = 1 / torch.cosh(e).mean()", "cosh", "y = 1 / torch.cosh(e.clamp(-20, 20)).mean()"),
        ("y = torch.sinh(e)", "sinh", "y = torch.sinh(e.clamp(-20, 20))"),
        ("y = torch.cosh(e.clamp(max=20))", "cosh", "y = torch.cosh(e.clamp(-20, 20))"),
        ("y = torch.exp(e.clamp(max=100))", "exp", "y = torch.exp(e.clamp(max=20))"),
    ],
)  # fmt: skip
def test_both_ends_are_bounded_where_both_overflow_and_no_clamp_is_clamped(at, by_hand, line, op, code):
    called = line[line.index(f"torch.{op}") : line.index(")", line.index(f"torch.{op}")) + 1]
    called += ")" if called.count("(") > called.count(")") else ""
    facts = at(op, (by_hand.fact(min=-250.0, max=90.0, absmax=250.0),), (by_hand.fact(posinf=1),), **on(line, called))
    assert explain(facts)[1].suggestions[-1].code == code


def test_the_log_of_a_bessel_function_has_a_form_that_does_not_overflow(at, by_hand):
    given = on("return torch.log(torch.special.i0(k)) - k * torch.cos(y)", "torch.special.i0(k)")
    facts = at("i0", (by_hand.fact(min=8.0, max=90.1, absmax=90.1),), (by_hand.fact(posinf=1),), **given)
    code = explain(facts)[1].suggestions[0].code
    assert code == "return (torch.log(torch.special.i0e(k)) + k.abs()) - k * torch.cos(y)"
    k = torch.tensor([0.5, 3.0, -20.0, 300.0])
    told = eval(code.removeprefix("return ").partition(" - k")[0], {"torch": torch, "k": k})  # noqa: S307
    assert torch.allclose(told[:3], torch.log(torch.special.i0(k[:3])))
    assert told.isfinite().all()


@pytest.mark.parametrize("inside", ["e", "e.clamp(max=20)"])
def test_the_log_of_a_cosh_has_a_form_that_does_not_overflow(at, by_hand, inside):
    given = on(f"return torch.log(torch.cosh({inside})).mean()", f"torch.cosh({inside})")
    facts = at("cosh", (by_hand.fact(min=-250.0, max=2.0, absmax=250.0),), (by_hand.fact(posinf=1),), **given)
    (first,) = explain(facts)[1].suggestions
    assert first.code == "return (e.abs() + torch.nn.functional.softplus(-2 * e.abs()) - 0.6931472).mean()"
    assert "goes to -250; in float32 it overflows below -88.7" in explain(facts)[1].evidence[0]


def test_what_no_weight_went_into_is_of_the_data(at, by_hand):
    given = on("y = torch.exp(x.mean(1)).sum()", "torch.exp(x.mean(1))")
    exploded = (by_hand.fact(max=182.0, absmax=182.0),), (by_hand.fact(posinf=1),)
    for known, said in ((False, True), (True, False)):
        facts = at("exp", *exploded, phase="loss", extra={"of_weights": known}, **given)
        mechanism = explain(facts)[1]
        assert any("No gradient goes back from it" in text for text in mechanism.evidence) is said
        assert ("batch" in mechanism.suggestions[0].text) is said


@pytest.mark.parametrize(
    ("line", "use", "code"),
    [
        ("norm = torch.exp(z).sum(1)", "loss = (torch.log(norm) - own).mean()", "norm = torch.logsumexp(z, dim=1)"),
        ("norm = Summed.apply(logits.exp().sum(1))", "return (norm.log() - chosen).mean()",
         None),
        ("n = dist(logits.exp().sum(-1, keepdim=True))", "return n.log()",
         None),
        ("norm = torch.exp(z).sum(1)", "return norm.mean()", "norm = torch.exp(z.clamp(max=20)).sum(1)"),
    ],
)  # fmt: skip
def test_a_sum_whose_logarithm_is_taken_later_is_not_bent_by_a_bound(at, by_hand, line, use, code):
    shown = next(text for text in ("torch.exp(z)", "logits.exp()") if text in line)
    given = (by_hand.fact(min=-250.0, max=130.0, absmax=250.0),)
    facts = at("exp", given, (by_hand.fact(posinf=1),), **on(line, shown))
    site = Site("net", "Net", "aten.exp.default", around=Around(uses=(use,)))
    facts = replace(facts, look=replace(facts.look, site=site))
    assert [one.code for one in explain(facts)[1].suggestions] == [code]


@pytest.mark.parametrize(
    ("uses", "may"),
    [
        ((), True), (("p = e / z.sum(-1)",), True), (("return e",), True),
        (("return mu + torch.randn_like(std) * std",), False),
    ],
)  # fmt: skip
def test_an_exponential_whose_uses_neither_sum_it_nor_hand_it_out_is_no_softmax(uses, may):
    assert forms.may_be_summed(uses) is may


def test_of_half_precision_the_softmax_that_the_lines_write_out_comes_before_a_wider_dtype(at, by_hand):
    line = "w = torch.exp(scores)"
    given = (by_hand.fact(dtype="float16", max=14.0, absmax=14.0),)
    facts = at(
        "exp", given, (by_hand.fact(dtype="float16", posinf=5),), text=line, column=(4, len(line)), file="t.py", line=3,
        extra={"float64_finite": True, "float64_absmax": 2.8e6},
    )  # fmt: skip
    site = Site("net", "Net", "aten.exp.default", around=Around(uses=("w = w / w.sum(1, keepdim=True)",)))
    facts = replace(facts, look=replace(facts.look, site=site))
    codes = [one.code for one in explain(facts)[1].suggestions]
    assert codes[0] == "w = torch.softmax(scores, dim=1)"
    assert any("bfloat16" in code for code in codes[1:])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("y = a.exp() + x", "y = a.clamp(max=20).exp() + x"),
        ("y = a.exp() - torch.exp(-b)", "y = a.clamp(max=20).exp() - torch.exp((-b).clamp(max=20))"),
    ],
)
def test_each_exponential_of_a_line_is_bounded(at, by_hand, line, code):
    assert code in [one.code for one in overflow(at, by_hand, line, "a.exp()", max=900.0)]


@pytest.mark.parametrize(
    ("use", "shape", "code"),
    [
        ("loss.backward()", (), "loss = ce"),
        ("loss.backward()", (4,), "loss = ce"),
        ("total = loss + decay", (), "loss = torch.exp(ce.clamp(max=20))"),
    ],
)
def test_above_a_bound_a_loss_that_is_an_exponential_would_train_nothing(at, by_hand, use, shape, code):
    line = "loss = torch.exp(ce)"
    given = (by_hand.fact(shape=shape, min=104.0, max=104.0, absmax=104.0),)
    facts = at("exp", given, (by_hand.fact(shape=shape, posinf=1),), extra={"of_weights": True}, **on(line, line[7:]))
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(uses=(use,)))))
    assert explain(facts)[1].suggestions[0].code == code


def test_a_mask_goes_into_the_softmax_for_what_it_leaves_out_may_be_the_largest(at, by_hand):
    line = "e = torch.exp(scores) * mask"
    given = (by_hand.fact(max=140.0, absmax=140.0),)
    facts = at("exp", given, (by_hand.fact(posinf=5),), **on(line, "torch.exp(scores)"))
    site = Site("net", "Net", "aten.exp.default", around=Around(uses=("w = e / e.sum(1, keepdim=True)",)))
    facts = replace(facts, look=replace(facts.look, site=site))
    told = explain(facts)[1].suggestions[0].code
    assert told == "e = torch.softmax(scores + torch.log(mask).clamp_min(-1e30), dim=1)"


@pytest.mark.parametrize(
    ("line", "use", "known", "code"),
    [
        ("w = torch.exp(adv / b)", "loss = (w[:, None] * err).mean()", False, "w = torch.exp((adv / b).clamp(max=5))"),
        ("ratio = torch.exp(logp - old)", "s1 = ratio * adv", True, "ratio = torch.exp((logp - old).clamp(max=5))"),
        ("ratio = (p - old).exp()", "s1 = adv * ratio.unsqueeze(1)", True, "ratio = (p - old).clamp(max=5).exp()"),
        ("y = torch.exp(s)", "z = y * x", True, "y = torch.exp(s.clamp(max=20))"),
        ("y = torch.exp(s)", "z = y + x", False, "y = torch.exp(s.clamp(max=20))"),
    ],
)  # fmt: skip
def test_an_exponential_that_weighs_is_bounded_so_that_one_alone_does_not_swamp_all(
    at, by_hand, line, use, known, code
):
    given, shown = (by_hand.fact(max=120.0, absmax=120.0, shape=(4,)),), line.partition(" = ")[2]
    facts = at("exp", given, (by_hand.fact(posinf=1, shape=(4,)),), phase="loss", extra={"of_weights": known},
               **on(line, shown))  # fmt: skip
    site = Site("net", "Net", "aten.exp.default", around=Around(uses=(use,)))
    facts = replace(facts, look=replace(facts.look, site=site))
    assert code in [one.code for one in explain(facts)[1].suggestions]


@pytest.mark.parametrize(
    ("line", "op", "code"),
    [
        ("n = torch.log(2 * math.pi * torch.special.i0(k))", "i0",
         "n = (torch.log(2 * math.pi * torch.special.i0e(k)) + k.abs())"),
        ("n = (w / torch.i0(a + b)).log()", "i0",
         "n = (torch.log(w / torch.special.i0e(a + b)) - (a + b).abs())"),
        ("n = torch.log(torch.special.i1(k))", "special_i1", "n = (torch.log(torch.special.i1e(k)) + k.abs())"),
        ("r = torch.special.i1(k) / torch.special.i0(k)", "i0",
         "r = (torch.special.i1e(k) / torch.special.i0e(k))"),
        ("return torch.log(torch.expm1(y))", "expm1", "return (y + torch.log(-torch.expm1(-y)))"),
        ("return (torch.exp(y + 1) - 1).log()", "exp",
         "return ((y + 1) + torch.log(-torch.expm1(-(y + 1))))"),
    ],
)  # fmt: skip
def test_a_bound_within_a_logarithm_would_change_what_it_cancels(at, by_hand, line, op, code):
    shown = re.search(rf"torch\.(?:special\.)?{op.removeprefix('special_')}\([\w +]+\)", line)[0]
    facts = at(op, (by_hand.fact(max=139.0, absmax=139.0),), (by_hand.fact(posinf=1),),
               **placed(line, shown), extra={"float64_finite": True, "of_weights": False})  # fmt: skip
    (told,) = explain(facts)[1].suggestions
    assert told.code == code


def test_what_is_a_term_of_a_logarithm_gets_no_bound(at, by_hand):
    line = "loss = loss + torch.log((w * torch.cosh(k)).sum(1) + c)"
    facts = at("cosh", (by_hand.fact(max=139.0, absmax=139.0),), (by_hand.fact(posinf=1),),
               **placed(line, "torch.cosh(k)"), extra={"float64_finite": True, "of_weights": True})  # fmt: skip
    (told,) = explain(facts)[1].suggestions
    assert told.code is None
    assert "write it in logarithms" in told.text
