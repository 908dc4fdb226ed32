"""Logarithms, exponentials and shares of what vanishes: the mend in whole lines."""

import ast
import math
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Origin
from nandiag.events import Around, Harm, Looked, Site, Statement
from tests.unit.analysis.mends.told import advice, logarithm, on, placed, quotient

# ---------------------------------------------------------------------- what is learnt


def trained(at, by_hand, line, expression, name, **rest):
    op = rest.pop("op", "log")
    given = by_hand.fact(name, min=-0.1, shape=(3,))
    extra = {"of_weights": True, "made_by": [], **rest.pop("extra", {})}
    return at(op, (given,), (by_hand.fact(nan=1, shape=(3,)),), **placed(line, expression), extra=extra, **rest)


@pytest.mark.parametrize(
    ("op", "line", "expression", "code"),
    [
        ("log", "return (d / self.var + torch.log(self.var)).mean()", "torch.log(self.var)",
         "return (d / self.var.exp() + self.var).mean()"),
        ("sqrt", "y = x * self.var.sqrt()", "self.var.sqrt()", "y = x * self.var.exp().sqrt()"),
        ("pow", "y = self.var ** 0.5", "self.var ** 0.5", "y = self.var.exp() ** 0.5"),
    ],
)  # fmt: skip
def test_a_weight_that_left_its_range_is_learnt_as_its_logarithm(at, by_hand, op, line, expression, code):
    facts = trained(at, by_hand, line, expression, "var", op=op, extra={"arg1": 0.5} if op == "pow" else {})
    told = advice(on(facts, written=[("self.var", (8,))]))
    assert [one.code for one in told] == [f"self.var.data.log_()  # behind line 8\n{code}"]


@pytest.mark.parametrize(("lines", "where"), [((8,), "behind line 8"), ((), "once, where it is made")])
def test_a_weight_by_another_name_is_changed_where_it_is_made(at, by_hand, lines, where):
    facts = trained(at, by_hand, "y = n * torch.log(b)", "torch.log(b)", "rate")
    written = [("b", (13,)), *([("self.rate", lines)] if lines else [])]
    told = advice(on(facts, ("b", "self.rate"), written=written))
    assert told[0].code == f"self.rate.data.log_()  # {where}\ny = n * b"
    assert told[0].text.startswith("self.rate is a weight")


def test_a_weight_in_a_container_by_another_name_is_not_changed_in_each_step(at, by_hand):
    facts = trained(at, by_hand, "y = n * torch.log(b)", "torch.log(b)", "rate")
    told = advice(on(facts, ("b", "self.rates['one']"), written=[("b", (13,))]))
    assert told[0].code == "self.rates['one'].data.log_()  # once, where it is made\ny = n * b"


@pytest.mark.parametrize("name", ['p["sigma"]', "self.scales[i]", "params[0].sigma"])
def test_a_weight_in_a_container_is_changed_where_it_is_made(at, by_hand, name):
    line = f"return (r / {name} + torch.log({name})).mean()"
    facts = trained(at, by_hand, line, f"torch.log({name})", None)
    (told,) = advice(on(facts))
    assert told.code == f"{name}.data.log_()  # once, where it is made\nreturn (r / {name}.exp() + {name}).mean()"
    assert told.text.startswith(f"{name} is a weight")


def test_what_a_call_hands_back_is_no_weight_by_name(at, by_hand):
    facts = trained(at, by_hand, "y = torch.log(p[at()])", "torch.log(p[at()])", None)
    assert not any("data.log_" in (one.code or "") for one in advice(on(facts)))


@pytest.mark.parametrize(("least", "bound"), [(-4.7, "1e-3"), (-1e-6, "1e-12")])
def test_what_is_divided_by_too_is_bounded_by_more_where_it_is_far_below_0(at, by_hand, least, bound):
    line, given = "y = torch.log(s) + (r / s) ** 2", by_hand.fact(min=least)
    extra = {"of_weights": True, "made_by": ["MulBackward0"]}
    told = advice(at("log", (given,), (by_hand.fact(nan=1),), extra=extra, **placed(line, "torch.log(s)")))
    codes = [one.code for one in told]
    assert f"y = torch.log(s.clamp_min({bound})) + (r / s.clamp_min({bound})) ** 2" in codes
    assert not any("raw" in (code or "") or "F." in (code or "") for code in codes)


@pytest.mark.parametrize("extra", [{"made_by": ["MulBackward0"]}, {"of_weights": False}])
def test_what_is_no_weight_itself_is_clamped(at, by_hand, extra):
    facts = trained(at, by_hand, "y = torch.sqrt(v)", "torch.sqrt(v)", None, op="sqrt", extra=extra)
    assert advice(facts)[0].code == "y = torch.sqrt(v.clamp_min(1e-12))"


# ---------------------------------------------------------------------- an infinite start


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("start = -torch.log(gap)", "start = -torch.log(gap.clamp_min(1e-6))"),
        ("start = gap.log() * 2", "start = gap.clamp_min(1e-6).log() * 2"),
        ("start = torch.log(gap) / n", None),  # what divides may be 0 as well
        ("start = gap.log() + x.log2()", None),
        ("start = gap * 2", None),
    ],
)
def test_a_logarithm_that_made_a_weight_infinite_before_training_is_kept_from_0(by_hand, line, code):
    bad = by_hand.fact("net.bias", posinf=4)
    look = Looked("found", "record", 0, source="op", facts={"weight": "net.bias", "birth": "op", "call": "neg"})
    place = {"source": line, "column": (8, len(line)), "function": "__init__"}
    origin = Origin("inf", 0, (0,), 0, phase="init", outputs=(bad,), **place)
    harm = Harm("parameter", 0, "init", (bad,), 1, 4)
    cause = explain(Facts(origin, "look", harm=harm, look=look, born_bad=bad))[0]
    assert cause.slug == "init_nonfinite"
    assert [one.code for one in cause.suggestions] == [*([code] if code else []), "assert self.bias.isfinite().all()"]


# ---------------------------------------------------------------------- logarithms of what vanishes


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        ("(w * p).sum(-1)", {"w": "torch.softmax(a, -1)", "p": "torch.exp(-d) / (s * math.sqrt(2 * math.pi))"}),
        ("torch.sum(a * torch.exp(-d / 2), dim=1, keepdim=True)", {}),
        ("q", {"q": "(torch.exp(d - a) / (a * s.exp())).sum(-1)"}),
        ("p.prod(-1)", {"p": "torch.sigmoid(d)"}),
    ],
)
def test_what_vanishes_is_added_as_logarithms_and_gives_the_same(at, by_hand, inside, names):
    code = logarithm(at, by_hand, inside, *names.items())
    torch.manual_seed(0)
    known = {"torch": torch, "math": math, **{name: torch.rand(3, 4, dtype=torch.double) + 0.1 for name in "ads"}}
    for name in reversed(names):
        known[name] = eval(names[name], known)  # noqa: S307
    assert torch.allclose(eval(code, known), torch.log(eval(inside, known)))  # noqa: S307
    assert "log(" not in code.partition("torch.logsumexp(")[0] or "prod" in inside


def test_a_factor_that_is_zero_itself_leaves_the_logarithm_of_a_product_finite(at, by_hand):
    code = logarithm(at, by_hand, "p.prod(-1)", ("p", "torch.sigmoid(d)"))
    for factors in ([[0.0, 0.5]], [[1e-25, 1e-25]]):
        assert torch.isfinite(eval(code, {"torch": torch, "p": torch.tensor(factors)})).all()  # noqa: S307


@pytest.mark.parametrize(("zeros", "factor"), [(0, "p"), (2, "p.clamp_min(1e-30)")])
def test_the_gradient_of_a_product_s_logarithm_takes_it_of_the_factors_too_and_bounds_no_product(
    at, by_hand, zeros, factor
):
    line = "return -torch.log(p.prod(1)).mean()"
    small = by_hand.fact(zeros=zeros, min=0.0 if zeros else 4.2e-45, max=4.3e-44, absmax=4.3e-44)
    given = {"node": "LogBackward0", "forward_op": "aten.log.default"}
    inputs = (by_hand.fact(zeros=3), small)
    told = advice(at("div", inputs, (by_hand.fact(neginf=4),), **given, **placed(line, "torch.log(p.prod(1))")))
    assert [one.code for one in told] == [f"return -torch.log({factor}).sum(1).mean()"]
    assert ("kept from 0" in told[0].text) is (zeros > 0)


@pytest.mark.parametrize(
    "inside", ["(w * p).sum(-1)", "p", "(w * p).sum()", "p.sum((0, 1))"],
)  # fmt: skip
def test_what_is_no_exponential_is_kept_from_zero(at, by_hand, inside):
    assert ".clamp_min(1e-12)" in logarithm(at, by_hand, inside, ("w", "counts / n"))


def test_one_less_the_square_of_a_tanh_has_a_form_that_is_exact(at, by_hand):
    code = logarithm(at, by_hand, "1 - a ** 2", ("a", "torch.tanh(u)"))
    u = torch.tensor([0.3, -2.0, 30.0])
    value = eval(code, {"torch": torch, "u": u})  # noqa: S307
    assert value[:2].tolist() == pytest.approx(torch.log(1 - torch.tanh(u[:2]) ** 2).tolist(), rel=1e-5)
    assert value[2].item() == pytest.approx(-58.6137, rel=1e-5)


# ---------------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("line", "text", "shape", "code"),
    [
        ("w = w / w.sum()", "lw.exp()", (4,), "w = torch.softmax(lw.clamp_min(torch.finfo(lw.dtype).min), dim=0)"),
        (
            "p = e / e.sum(-1, keepdim=True)",
            "torch.exp(s - m)",
            (4, 4),
            "p = e / e.sum(-1, keepdim=True).clamp_min(1e-6)",
        ),
        ("w = w / w.sum()", "lw.exp()", (4, 4), "w = w / w.sum().clamp_min(1e-6)"),
        ("w = w / w.sum()", "net(x).exp()", (4,), "w = w / w.sum().clamp_min(1e-6)"),
        ("p = e / e.sum(-1, keepdim=True)", "s * mask", (4, 4), "p = e / e.sum(-1, keepdim=True).clamp_min(1e-6)"),
    ],
)
def test_a_share_of_exponentials_is_a_softmax_of_the_exponents(at, by_hand, line, text, shape, code):
    below = by_hand.fact(zeros=1, min=0.0, shape=(1,))
    facts = at("div", (by_hand.fact(shape=shape), below), (by_hand.fact(nan=4),),
               **placed(line, line.partition(" = ")[2]))  # fmt: skip
    assert advice(on(facts, (line.partition(" / ")[0].partition(" = ")[2], text)))[0].code == code


@pytest.mark.parametrize(("text", "scores"), [("lw.exp()", "lw"), ("torch.exp(s - m)", "s - m")])
def test_of_exponentials_that_vanish_the_softmax_is_plain(at, by_hand, text, scores):
    facts = at("div", (by_hand.fact(shape=(4,)), by_hand.fact(zeros=1, shape=())), (by_hand.fact(nan=4),),
               **placed("w = w / w.sum()", "w / w.sum()"), extra={"vanished": -150.0})  # fmt: skip
    assert advice(on(facts, ("w", text)))[0].code == f"w = torch.softmax({scores}, dim=0)"


@pytest.mark.parametrize(
    ("use", "code"),
    [
        ("y = (w * v).sum(-1) / w.sum(-1)", "w = 1 / d.clamp_min(1e-6)"),
        ("w = w / torch.sum(w, dim=-1)", "w = 1 / d.clamp_min(1e-6)"),
        ("y = w * v", "w = 1 / torch.where(d != 0, d, torch.inf)"),
    ],
)
def test_a_weight_among_weights_may_be_huge(at, by_hand, use, code):
    facts = quotient(at, by_hand, "w = 1 / d", "1 / d", "posinf", of_weights=False)
    assert advice(on(facts, uses=(use,)))[0].code == code


# ---------------------------------------------------------------------- what a relu has left at 0


@pytest.mark.parametrize(("zeros", "soft"), [(12, ["torch.nn.functional.softplus(z)"]), (2, [])])
def test_where_a_relu_left_most_at_0_a_bound_would_leave_it_untrained(at, by_hand, zeros, soft):
    given, out = by_hand.fact(zeros=zeros, min=0.0), by_hand.fact(neginf=zeros)
    facts = at("log", (given,), (out,), **placed("loss = rate.log()", "rate.log()"),
               extra={"of_weights": True, "made_by": ["ReluBackward0", "AddmmBackward0"]})  # fmt: skip
    assert [one.code for one in advice(facts)] == [*soft, "loss = rate.clamp_min(1e-12).log()"]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("torch.relu(raw)", "rate = torch.nn.functional.softplus(raw) + 1e-6"),
        ("self.head(h).relu()", "rate = torch.nn.functional.softplus(self.head(h)) + 1e-6"),
        ("self.net(x)", "torch.nn.functional.softplus(z)"),
    ],
)
def test_the_line_of_the_relu_itself_is_mended_where_the_text_shows_it(at, by_hand, made, code):
    given, out = by_hand.fact(zeros=12, min=0.0), by_hand.fact(neginf=12)
    facts = at("log", (given,), (out,), **placed("loss = rate.log()", "rate.log()"),
               extra={"of_weights": True, "made_by": ["ReluBackward0", "AddmmBackward0"]})  # fmt: skip
    told = advice(on(facts, ("rate", made)))[0]
    assert told.code == code
    assert ("in line 3" in told.text) is ("rate" in code)


@pytest.mark.parametrize(
    ("line", "logged", "divided", "mended"),
    [
        ("return (s.log() + e ** 2 / (2 * s ** 2)).mean()", "s.log()", "e ** 2 / (2 * s ** 2)",
         "return (s.clamp_min(1e-3).log() + e ** 2 / (2 * s.clamp_min(1e-3) ** 2)).mean()"),
        ("loss = torch.log(s) + e.square() / s.square()", "torch.log(s)", "e.square() / s.square()",
         "loss = torch.log(s.clamp_min(1e-3)) + e.square() / s.clamp_min(1e-3).square()"),
        ("loss = 0.5 * (torch.log(s) + e ** 2 / s)", "torch.log(s)", "e ** 2 / s",
         "loss = 0.5 * (torch.log(s.clamp_min(1e-6)) + e ** 2 / s.clamp_min(1e-6))"),
        ("loss = s.log() + e.abs() / (2 * s)", "s.log()", "e.abs() / (2 * s)",
         "loss = s.clamp_min(1e-6).log() + e.abs() / (2 * s.clamp_min(1e-6))"),
        ("loss = s.log() + e / (1 + s)", "s.log()", None, "loss = s.clamp_min(1e-12).log() + e / (1 + s)"),
    ],
)  # fmt: skip
def test_a_density_by_hand_has_its_scale_guarded_throughout(at, by_hand, line, logged, divided, mended):
    given = by_hand.fact(zeros=1, min=0.0, max=2.0, absmax=2.0)
    facts = at("log", (given,), (by_hand.fact(neginf=1),), **placed(line, logged))
    assert advice(facts)[0].code == mended
    if divided is not None:
        told = advice(at("div", (by_hand.fact(), given), (by_hand.fact(posinf=1),), **placed(line, divided)))
        assert told[0].code == mended
    assert _trains(mended.replace("return", "loss ="))


@pytest.mark.parametrize(
    ("line", "op", "expression", "other", "least"),
    [
        ("data = e ** 2 / (2 * s ** 2)", "div", "e ** 2 / (2 * s ** 2)", "size = torch.log(s)", "1e-3"),
        ("data = e ** 2 / s", "div", "e ** 2 / s", "size = 0.5 * s.log()", "1e-6"),
        ("size = s.log()", "log", "s.log()", "data = e / s", "1e-6"),
    ],
)
def test_a_density_in_several_lines_has_its_scale_guarded_before_them(at, by_hand, line, op, expression, other, least):
    held = by_hand.fact(zeros=1, min=0.0, max=2.0, absmax=2.0)
    given = (by_hand.fact(), held) if op == "div" else (held,)
    facts = at(op, given, (by_hand.fact(posinf=1),), **placed(line, expression))
    around = Around((), (), block=(Statement(9, other), Statement(10, "return size")), handed="density")
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    code = advice(facts)[0].code
    assert code == f"s = s.clamp_min({least})\n{line}"
    assert _trains(f"{code}\n{other}\nloss = data + size")


def _trains(code):
    named = {"s": torch.tensor([0.0, 1.0], requires_grad=True), "e": torch.tensor([1e-3, 0.1]), "torch": torch}
    leaf = named["s"]
    exec(code, named)  # noqa: S102
    named["loss"].sum().backward()
    return leaf.grad.isfinite().all()


def test_a_sum_of_exponentials_that_divides_as_well_is_no_scale(at, by_hand):
    line = "loss = s.log() - z"
    facts = at("log", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), **placed(line, "s.log()"), line=3)
    told = ("e = torch.exp(z)", "s = e.sum(-1)", line)
    around = Around(block=tuple(Statement(number, one) for number, one in enumerate(told, 1)))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert advice(facts)[0].code == "loss = s - z\ne = z  # line 1\ns = torch.logsumexp(e, dim=-1)  # line 2"
    divided = replace(around, block=(*around.block, Statement(4, "p = z / s")))
    facts = replace(facts, look=replace(facts.look, site=Site(around=divided)))
    assert advice(facts)[0].code == f"s = s.clamp_min(1e-6)\n{line}"


@pytest.mark.parametrize(
    ("below", "given"), [("torch.sqrt(s)", True), ("s ** 2", True), ("s ** -2", False), ("torch.pow(s, 0)", False)]
)
def test_a_divisor_is_0_with_what_it_is_made_of_and_each_place_counts_once(below, given):
    found = fitting.breakable(f"y = x / {below}", ast.parse("s", mode="eval").body, poles=True)
    assert len(found) == given


def test_in_a_branch_that_is_not_taken_what_it_is_divided_by_is_bounded_too(at, by_hand):
    """Where both are 0 the gradient of 0/0 is NaN behind a bound around the quotient."""
    line = "ratio = torch.where(y > 0, y * torch.log(y / mu), torch.zeros_like(mu))"
    given = by_hand.fact(zeros=9, min=0.0)
    facts = at("log", (given,), (by_hand.fact(neginf=9),), **placed(line, "torch.log(y / mu)"))
    code = advice(facts)[0].code
    assert code == line.replace("y / mu", "(y / mu.clamp_min(1e-12)).clamp_min(1e-12)")
    mu = torch.tensor([0.0, 2.0], requires_grad=True)
    kept: dict[str, torch.Tensor] = {}
    exec(code, {"torch": torch, "y": torch.tensor([0.0, 1.0]), "mu": mu}, kept)  # noqa: S102
    (gradient,) = torch.autograd.grad(kept["ratio"].sum(), mu)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("given", "birth", "code"),
    [
        ({"zeros": 1, "min": 0.0, "absmin": 0.0017174908}, "op", "self.log_var = torch.log(var.clamp_min(1.7e-3))"),
        ({"zeros": 1, "min": 0.0, "absmin": 0.0017174908}, None, "self.log_var = torch.log(var.clamp_min(1e-12))"),
        ({"zeros": 30, "min": 0.0, "absmin": 0.0017174908}, "op", "self.log_var = torch.log(var.clamp_min(1e-12))"),
        ({"zeros": 2, "min": 0.0, "absmin": 40.0}, "op", "self.log_var = torch.log(var.clamp_min(4.0e1))"),
        ({"zeros": 2, "min": 0.0, "absmin": None}, "op", "self.log_var = torch.log(var.clamp_min(1e-12))"),
    ],
)
def test_a_zero_of_a_table_comes_next_to_the_least_of_the_others(at, by_hand, given, birth, code):
    """A logarithm of 1e-12 beside others of 1e-3 makes what is weighed by it rule the loss."""
    table = by_hand.fact(shape=(40,), **given)
    extra = {} if birth is None else {"birth": birth}
    line = "self.log_var = torch.log(var)"
    facts = at("log", (table,), (by_hand.fact(neginf=1),), extra=extra, **placed(line, "torch.log(var)"))
    assert advice(facts)[0].code == code


@pytest.mark.parametrize(
    ("line", "most", "of_weights", "bound"),
    [
        ("q = torch.log(self.p[items])", 0.19, False, "1.6e-3"),
        ("q = torch.log(self.p[items])", 0.19, True, "1e-12"),
        ("q = torch.log(self.p[items])", 19.0, False, "1e-12"),
        ("q = torch.log(power[:, 1:])", 0.19, False, "1e-12"),
    ],
)
def test_of_shares_that_an_index_looks_up_the_bound_lies_next_to_the_least(at, by_hand, line, most, of_weights, bound):
    given = by_hand.fact(zeros=2, min=0.0, max=most, absmax=most, absmin=1.6667e-3)
    facts = at("log", (given,), (by_hand.fact(neginf=2),), **placed(line, line[4:]), extra={"of_weights": of_weights})
    assert advice(facts)[0].code == f"{line[:-1]}.clamp_min({bound}))"


@pytest.mark.parametrize(
    "names", [(("p", "w.softmax(-1) * pdf(y, mu)"),), (("p", "w.softmax(-1) * q"), ("q", "pdf(y, mu)"))]
)
def test_a_density_that_a_function_hands_back_has_no_logarithm_taken_of_it_again(at, by_hand, names):
    line = "nll = -torch.log(p.sum(-1))"
    facts = at("log", (by_hand.fact(zeros=3, min=0.0),), (by_hand.fact(neginf=3),),
               **placed(line, "torch.log(p.sum(-1))"))  # fmt: skip
    bound, better = advice(on(facts, *names))
    assert bound.code == "nll = -torch.log(p.sum(-1).clamp_min(1e-12))"
    assert better.code is None
    assert "let pdf return its logarithm, and take torch.logsumexp(torch.log_softmax(w, -1) + " in better.text
