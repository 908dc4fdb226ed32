"""Divisors that are 0: the mend in whole lines, as small as what was seen allows."""

import math
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY
from nandiag.events import Around, Carried, History, Site
from tests.unit.analysis.mends.told import advice, on, placed, quotient

# ---------------------------------------------------------------------- a root above the division


@pytest.mark.parametrize(
    ("root", "mended"),
    [
        ("torch.sqrt((y * y).sum(-1))", "torch.sqrt((y * y).sum(-1).clamp_min(1e-12))"),
        ("(y ** 2).sum(-1) ** 0.5", "(y ** 2).sum(-1).clamp_min(1e-12) ** 0.5"),
        ("(a - b).sqrt()", "(a - b).clamp_min(1e-12).sqrt()"),
        (
            "torch.sqrt(a.sum(1)) * b.sum(1).sqrt()",
            "torch.sqrt(a.sum(1).clamp_min(1e-12)) * b.sum(1).clamp_min(1e-12).sqrt()",
        ),
    ],
)
def test_a_root_above_the_division_is_mended_in_its_own_line(at, by_hand, root, mended):
    facts = on(quotient(at, by_hand, "u = y / size[:, None]", "y / size[:, None]", "nan"), ("size", root))
    told = advice(facts)
    assert [one.code for one in told] == [f"size = {mended}"]
    assert "in line 3" in told[0].text


@pytest.mark.parametrize(
    ("nodes", "code"),
    [
        (["MulBackward0", "LinalgVectorNormBackward0"], "y = t * v / (c ** 0.5 * size).clamp_min(1e-6)"),
        ([], "y = t * v / (c ** 0.5 * size).clamp_min(1e-6)"),
        (["MulBackward0", "PowBackward0"], "y = t * v / (c.clamp_min(1e-12) ** 0.5 * size)"),
    ],
)
def test_the_root_of_a_number_in_a_product_is_not_what_is_zero(at, by_hand, nodes, code):
    """A curvature, say: a number has no clamp_min, and autograd knows nothing of its root."""
    facts = quotient(at, by_hand, "y = t * v / (c ** 0.5 * size)", "t * v / (c ** 0.5 * size)", "nan", below_by=nodes)
    assert advice(facts)[0].code == code


@pytest.mark.parametrize(("zeros", "trained", "kept"), [(16, True, True), (16, False, False), (3, True, False)])
def test_a_divisor_that_is_0_all_over_leaves_nothing_of_what_is_trained(at, by_hand, zeros, trained, kept):
    given = by_hand.fact(), by_hand.fact(zeros=zeros, min=0.0, max=0.0 if zeros == 16 else 1.5)
    line = placed("s = v / (df - 2)", "v / (df - 2)")
    facts = at("div", given, (by_hand.fact(posinf=zeros),), **line, extra={"of_weights": trained})
    assert (advice(facts)[0].code == "s = v / torch.where(df - 2 == 0, 1e-6, df - 2)") is kept


@pytest.mark.parametrize(
    ("line", "expression", "names", "code"),
    [
        ("g = grad * x.sign() / x", "grad * x.sign() / x", (), "g = grad * x.sign() / torch.where(x == 0, 1e-6, x)"),
        ("y = a / net(x)", "a / net(x)", (),
         "divisor = net(x)\ny = a / torch.where(divisor == 0, 1e-6, divisor)"),
        ("y = a / x", "a / x", [("x", "h.abs().sum(-1)")], "y = a / x.clamp_min(1e-6)"),
        ("y = a / x", "a / x", [("x", "(h - m) ** 2")], "y = a / x.clamp_min(1e-6)"),
        ("y = a / x", "a / x", [("x", "(h - m) ** 3")], "y = a / torch.where(x == 0, 1e-6, x)"),
        ("y = a / x", "a / x", [("x", "F.relu(h).mean(1)")], "y = a / x.clamp_min(1e-6)"),
        ("y = a / x.norm(dim=1)", "a / x.norm(dim=1)", (), "y = a / x.norm(dim=1).clamp_min(1e-6)"),
        ("y = a / (h > 0).sum(1)", "a / (h > 0).sum(1)", (), "y = a / (h > 0).sum(1).clamp_min(1e-6)"),
        ("y = a / (p + q)", "a / (p + q)", [("p", "h.exp()"), ("q", "k * k")], "y = a / (p + q).clamp_min(1e-6)"),
        ("y = a / (p - q)", "a / (p - q)", [("p", "h.exp()"), ("q", "k * k")],
         "y = a / torch.where(p - q == 0, 1e-6, p - q)"),
        ("y = w / w.sum(1)", "w / w.sum(1)", (), "y = w / w.sum(1).clamp_min(1e-6)"),
    ],
)  # fmt: skip
def test_zeros_all_over_do_not_tell_that_a_divisor_is_never_negative(at, by_hand, line, expression, names, code):
    """A clamp would make each number below zero a tiny one above it."""
    given = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(zeros=16, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(nan=16),), **placed(line, expression))
    assert advice(on(facts, *names))[0].code == code


def test_an_error_that_is_a_length_is_kept_above_zero_in_its_line(at, by_hand):
    given = (by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0),)
    line = placed("f = 0.9 * (rtol / err) ** 0.5", "rtol / err")
    facts = at("reciprocal", given, (by_hand.fact(shape=(), posinf=1),), **line)
    told = advice(on(facts, ("err", "(0.5 * dt * (b - a)).norm() / (1 + y.norm())")))
    assert [one.code for one in told] == ["f = 0.9 * (rtol / err.clamp_min(1e-6)) ** 0.5"]


@pytest.mark.parametrize(("below", "slug"), [("a.sum(-1) + self.eps", "precision_underflow"), ("a.sum(-1)", None)])
def test_a_small_number_that_half_precision_lost_in_the_divisor_is_the_story(at, by_hand, below, slug):
    given = by_hand.fact(dtype="float16", zeros=9, min=0.0), by_hand.fact(dtype="float16", zeros=2, min=0.0, max=8.0)
    line = placed(f"a = a / ({below})", f"a / ({below})")
    story, mechanism = explain(at("div", given, (by_hand.fact(dtype="float16", nan=4),), **line))
    assert mechanism.slug == "division_by_zero"
    assert (story.strength == LIKELY and story.slug == slug) is (slug is not None)


def test_where_more_than_0_is_divided_by_a_root_the_quotient_is_left_out_as_well(at, by_hand):
    facts = on(quotient(at, by_hand, "e = 1 / r", "1 / r", "posinf"), ("r", "(d ** 2).sum(-1).sqrt()"))
    told = advice(facts)[0].code
    assert told == "r = (d ** 2).sum(-1).clamp_min(1e-12).sqrt()\ne = 1 / torch.where(r > 2e-6, r, torch.inf)"
    d = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    names = {"d": d, "torch": torch}
    exec(told, names)  # noqa: S102
    names["e"].sum().backward()
    assert names["e"].tolist() == pytest.approx([0.0, 0.2])
    assert d.grad.isfinite().all()
    assert not d.grad[0].any()


@pytest.mark.parametrize("kind", ["nan", "posinf"])
def test_a_root_that_autograd_alone_knows_of_is_told_in_words(at, by_hand, kind):
    facts = quotient(at, by_hand, "u = y / size", "y / size", kind, below_by=["UnsqueezeBackward0", "SqrtBackward0"])
    assert "is the root of what is 0" in advice(facts)[0].text


@pytest.mark.parametrize("extra", [{"of_weights": False}, {"below_by": ["SumBackward0", "SqrtBackward0"]}])
def test_without_a_root_or_a_gradient_the_divisor_itself_is_guarded(at, by_hand, extra):
    facts = quotient(at, by_hand, "u = y / size", "y / size", "nan", **extra)
    assert advice(facts)[0].code == "u = y / size.clamp_min(1e-6)"


# ---------------------------------------------------------------------- the largest of what is scaled


@pytest.mark.parametrize(
    ("line", "expression", "peak", "code"),
    [
        ("scale = 448.0 / amax", "448.0 / amax", "x.detach().abs().max()",
         "scale = 448.0 / torch.where(amax != 0, amax, 1.0)"),
        ("x = x / m", "x / m", "x.abs().amax(-1, keepdim=True)", "x = x / torch.where(m != 0, m, 1.0)"),
        ("s = 7 / x.abs().max(-1)[0]", "7 / x.abs().max(-1)[0]", "",
         "divisor = x.abs().max(-1)[0]; s = 7 / torch.where(divisor != 0, divisor, 1.0)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["nan", "posinf"])
@pytest.mark.parametrize("shape", [(), (4, 1)])
def test_what_is_scaled_by_its_largest_is_left_as_it_is_where_that_is_0(
    at, by_hand, line, expression, peak, code, kind, shape
):
    below = by_hand.fact(zeros=1, shape=shape)
    facts = at("div", (by_hand.fact(), below), (by_hand.fact(**{kind: 1}),), **placed(line, expression))
    names = [("m", peak), ("amax", peak)] if peak else []
    assert advice(on(facts, *names))[0].code == code


@pytest.mark.parametrize(
    ("line", "uses", "code"),
    [
        ("h = h * 0.9 * (tol / err) ** 0.5", (), "h = h * 0.9 * (tol / err.clamp_min(1e-6)) ** 0.5"),
        ("h = tol / err * (k2 - k1)", (), "h = tol / torch.where(err != 0, err, 1.0) * (k2 - k1)"),
        ("h = tol / err", ("y = (k2 - k1) * h",), "h = tol / torch.where(err != 0, err, 1.0)"),
        ("h = tol / err", ("y = y + h",), "h = tol / err.clamp_min(1e-6)"),
    ],
)
def test_a_scale_of_another_thing_than_the_largest_is_of_is_no_free_choice(at, by_hand, line, uses, code):
    given = (by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0),)
    facts = at("reciprocal", given, (by_hand.fact(shape=(), posinf=1),), **placed(line, "tol / err"))
    assert advice(on(facts, ("err", "(k2 - k1).abs().max()"), uses=uses))[0].code == code


def test_a_largest_that_has_a_sign_is_no_size(at, by_hand):
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),),
               **placed("y = x / m", "x / m"))  # fmt: skip
    assert advice(on(facts, ("m", "x.max()")))[0].code == "y = x / m.clamp_min(1e-6)"


def test_an_exponential_is_bounded_above_what_is_usual(at, by_hand):
    def bound(most):
        given = by_hand.fact(max=100.0, absmax=100.0, shape=(4,))
        out = by_hand.fact(posinf=1, max=most, absmax=most, shape=(4,))
        facts = at("exp", (given,), (out,), **placed("y = torch.exp(s)", "torch.exp(s)"),
                   extra={"float64_finite": True})  # fmt: skip
        return advice(facts)[0].code

    assert bound(math.exp(3)) == "y = torch.exp(s.clamp(max=20))"
    assert bound(math.exp(41)) == "y = torch.exp(s.clamp(max=50))"
    assert bound(math.exp(85)) == "y = torch.exp(s.clamp(max=20))"  # what grows without end has no usual size


# ---------------------------------------------------------------------- corrections and settings


def corrected(at, by_hand, line, expression, settings):
    extra = {"arg1": 0.0, "reconstructed": True, "parameters": ["weight"], "settings": settings}
    given, out = (by_hand.fact(zeros=16, min=0.0, max=0.0),), (by_hand.fact(nan=16),)
    return at("div", given, out, extra=extra, **{**placed(line, expression), "phase": "optimizer"})


def test_a_beta_of_one_is_no_matter_of_the_count(at, by_hand):
    line = 'vhat = s["v"] / (1 - b2 ** s["t"])'
    story, mechanism = explain(corrected(at, by_hand, line, line[7:], {"eps": 1e-8, "betas": [0.9, 1.0]}))
    assert mechanism.suggestions[0].code == "betas=(0.9, 0.999)"
    assert "beta2 is 1" in mechanism.suggestions[0].text
    assert story.suggestions == ()


def test_a_count_that_is_looked_up_counts_from_one(at, by_hand):
    line = 'vhat = s["v"] / (1 - b2 ** s["t"])'
    facts = corrected(at, by_hand, line, line[7:], {})
    facts = replace(facts, origin=replace(facts.origin, outputs=(by_hand.fact(posinf=16),)))
    assert advice(facts)[0].code == 'vhat = s["v"] / (1 - b2 ** (s["t"] + 1))'


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"eps": 1e-8, "betas": [1.0, 0.99]}, "betas=(0.999, 0.99)", "beta1 is 1"),
        ({"eps": 1e-8, "betas": [0.9, 0.99]}, None, "its eps of 1e-8 stands elsewhere"),
        ({}, None, "rates, betas, step counts."),
    ],
)
def test_an_optimizer_of_a_library_that_divides_by_a_number_is_told_by_its_settings(at, by_hand, settings, code, text):
    story, mechanism = explain(corrected(at, by_hand, "opt.step()", "opt.step()", settings))
    assert (story.slug, story.suggestions[0].code) == ("optimizer_division", code)
    assert text in story.suggestions[0].text
    assert mechanism.suggestions == ()


# ---------------------------------------------------------------------- by what weights weigh


def test_a_loss_of_targets_that_weigh_nothing_is_divided_by_their_weights(at, by_hand):
    line = "loss = F.cross_entropy(z, y, weight=w)"
    facts = at(
        "nll_loss_forward", (by_hand.fact(),), (by_hand.fact(nan=1),), extra={"arg4": -100}, **placed(line, line[7:])
    )
    told = advice(facts)[0].code
    names = {"F": torch.nn.functional, "w": torch.tensor([0.0, 2.0, 0.5]), "z": torch.randn(4, 3)}
    for y in ([0, 0, 0, 0], [1, 2, 0, 1], [1, -100, 2, 0]):
        names["y"] = torch.tensor(y)
        mean = torch.nn.functional.cross_entropy(names["z"], names["y"], weight=names["w"])
        assert eval(told.removeprefix("loss = "), names).item() == pytest.approx(0.0 if not any(y) else mean.item())  # noqa: S307


@pytest.mark.parametrize(
    ("line", "told"),
    [("l = torch.log(1 * (1 - y.pow(2)))", "l = {}"),
     ("l = torch.log(s * (1 - y * y))", "l = ({} + torch.as_tensor(s).log())")],
)  # fmt: skip
def test_a_scaled_tanh_has_its_exact_form_in_one_line(at, by_hand, line, told):
    facts = at("log", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), **placed(line, line[4:]))
    code = advice(on(facts, ("y", "torch.tanh(u)")))[0].code
    assert code == told.format("2 * (0.6931472 - u - torch.nn.functional.softplus(-2 * u))")
    names = {"torch": torch, "u": torch.tensor([0.3, -1.0]), "s": 2.0}
    names["y"] = names["u"].tanh()
    exec(line, names)  # noqa: S102
    right = names["l"]
    exec(code, names)  # noqa: S102
    assert torch.allclose(names["l"], right, atol=1e-6)


# ---------------------------------------------------------------------- products that loops carry on

CARRIED = (Carried("a", 12, "a = (a @ T) * e[:, t]"),)


@pytest.mark.parametrize(
    ("line", "total", "taken"),
    [("y = -torch.log(a.sum(-1)).mean()", "-1, keepdim=True", ".squeeze(-1)"),
     ("y = -a.sum(dim=1).log().mean()", "1, keepdim=True", ".squeeze(1)"), ("y = torch.log(a.sum())", "", "")],
)  # fmt: skip
@pytest.mark.parametrize("node", [None, "LogBackward0"])
def test_a_product_that_vanishes_is_divided_by_its_sum_in_each_step(at, by_hand, line, total, taken, node):
    expression = next(
        one for one in ("torch.log(a.sum(-1))", "a.sum(dim=1).log()", "torch.log(a.sum())") if one in line
    )
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0))[0 if node else 1 :]
    facts = at("div" if node else "log", given, (by_hand.fact(neginf=1),), node=node,
               forward_op="aten.log.default" if node else None, **placed(line, expression))  # fmt: skip
    around = Around(carried=CARRIED)
    code = advice(replace(facts, look=replace(facts.look, site=Site(around=around))))[0].code
    first, step, mended = code.split("\n")
    assert step == f"total = a.sum({total}); a = a / total; shift = shift + total.log(){taken}  # behind line 12"
    names = {"torch": torch, "T": torch.rand(3, 3), "e": torch.rand(3, 5), "a": torch.rand(2, 3)}
    plain = dict(names)
    exec(first, names)  # noqa: S102
    for t in range(5):
        names["t"] = plain["t"] = t
        exec(CARRIED[0].text, names)  # noqa: S102
        exec(step, names)  # noqa: S102
        exec(CARRIED[0].text, plain)  # noqa: S102
    exec(mended, names)  # noqa: S102
    exec(line, plain)  # noqa: S102
    assert torch.allclose(names["y"], plain["y"], rtol=1e-4)


def test_a_product_that_outgrows_its_dtype_is_no_matter_of_the_batch(at, by_hand):
    big, past = (
        by_hand.fact(max=1e38, absmax=1e38),
        History(tuple(range(9)), (1.0,) * 9, (1.0,) * 9, (0.1,) * 9, (None,) * 9),
    )
    line = "a = (a[:, None] * m).sum(0)"
    facts = at("mul", (big, big), (by_hand.fact(posinf=1),), step=9, history=past, extra={"float64_finite": True},
               **placed(line, "a[:, None] * m"))  # fmt: skip
    assert explain(facts)[0].slug == "data_outlier"
    around = Around(uses=("return torch.log(a.sum())",), carried=(Carried("a", 9, line),))
    story, mechanism = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert (story, mechanism.slug) == (None, "overflow")
    assert mechanism.suggestions[0].code.endswith("return (torch.log(a.sum()) + shift)")


# ---------------------------------------------------------------------- of which the logarithm is taken


@pytest.mark.parametrize(
    ("line", "expression", "code", "uses"),
    [
        ("psnr = 10 * torch.log10(1 / mse)", "1 / mse", "psnr = 10 * torch.log10(1 / mse.clamp_min(1e-6))", ()),
        ("psnr = 10 * (1 / mse).log10()", "1 / mse", "psnr = 10 * (1 / mse.clamp_min(1e-6)).log10()", ()),
        ("r = 255.0 / e", "255.0 / e", "r = 255.0 / e.clamp_min(1e-6)", ("return 20 * torch.log10(r).mean()",)),
        ("r = 1 / e", "1 / e", "r = 1 / e.clamp_min(1e-6)", ("x = r.log()",)),
        ("r = 1 / e", "1 / e", "r = 1 / torch.where(e != 0, e, torch.inf)", ("x = torch.log(bar) + r",)),
    ],
)
def test_a_quotient_whose_logarithm_is_taken_may_be_huge_and_not_0(at, by_hand, line, expression, code, uses):
    facts = on(quotient(at, by_hand, line, expression, "posinf"), uses=uses)
    assert advice(facts)[0].code == code


# ---------------------------------------------------------------------- vectors that are 0 all over


@pytest.mark.parametrize(("step", "empty", "begins"), [(0, 4, True), (7, 4, False), (0, 1, False)])
def test_where_a_layer_begins_at_0_its_vectors_have_no_direction(at, by_hand, step, empty, begins):
    given = (
        by_hand.fact(zeros=4 * empty, min=0.0, max=0.0 if empty == 4 else 2.0),
        by_hand.fact(shape=(4, 1), zeros=empty, min=0.0, absmin=0.5),
    )
    line = "return q / torch.linalg.norm(q, dim=-1, keepdim=True)"
    facts = at("div", given, (by_hand.fact(nan=4 * empty),), **placed(line, line[7:]), step=step,
               extra={"of_weights": True})  # fmt: skip
    told = advice(on(facts, ("q", "self.quat(self.body(x))")))
    codes = [f"{line}.clamp_min(1e-6)"]
    if begins:
        codes.insert(0, "torch.nn.init.normal_(self.quat.weight, std=0.02)  # behind what sets it to 0")
    assert [one.code for one in told] == codes


# ---------------------------------------------------------------------- scalings by sums of exponentials


@pytest.mark.parametrize(("least", "zeros", "node"), [(9e-40, 0, None), (0.0, 1, None), (9e-25, 0, "DivBackward0")])
def test_scalings_by_sums_of_exponentials_are_computed_in_logarithms(at, by_hand, least, zeros, node):
    divisor = by_hand.fact(shape=(4,), zeros=zeros, min=least, absmin=1e-38)
    line = "v = b / (K.t() @ u)"
    facts = at("div", (by_hand.fact(shape=(4,)), divisor), (by_hand.fact(posinf=1, shape=(4,)),),
               node=node, **placed(line, line[4:]), extra={"of_weights": True, "float64_finite": True})  # fmt: skip
    told = advice(on(facts, ("K", "torch.exp(-cost / eps)")))
    code = "v = torch.as_tensor(b).log() - torch.logsumexp(K.t() + u, dim=-1)"
    assert [one.code for one in told] == [None]  # alone it would be another number
    assert "K, u, v then hold logarithms: take no exponential in line 3" in told[0].text
    assert f"This line is then {code}, " in told[0].text
    cost, u, b = torch.rand(4, 5), torch.rand(4), torch.rand(5)
    names = {"K": -cost, "u": u.log(), "b": b, "torch": torch}
    exec(code, names)  # noqa: S102
    assert torch.allclose(names["v"].exp(), b / (torch.exp(-cost).t() @ u))
    assert "clamp_min" in advice(on(facts, ("K", "torch.rand(4, 4)")))[0].code or zeros


# ---------------------------------------------------------------------- what the one number below is


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("t.quantile(0.9) - t.quantile(0.1)", "y = z / torch.where(s != 0, s, 1.0)"),
        ("torch.max(t) - torch.min(t)", "y = z / torch.where(s != 0, s, 1.0)"),
        ("t.std()", "y = z / torch.where(s != 0, s, 1.0)"),
        ("(t - t.mean()).norm()", "y = z / torch.where(s != 0, s, 1.0)"),
        ("(t - goal).norm()", "y = z / s.clamp_min(1e-2)"),
        ("torch.linalg.norm(t)", "y = z / s.clamp_min(1e-2)"),
        ("t.max() - u.min()", None),
        ("t.mean() - t.min()", None),
    ],
)
def test_a_spread_of_equals_is_taken_for_1(at, by_hand, made, code):
    given = (by_hand.fact(), by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0))
    facts = at("div", given, (by_hand.fact(posinf=1),), **placed("y = z / s", "z / s"))
    assert advice(on(facts, ("s", made)))[0].code == code


@pytest.mark.parametrize(
    ("line", "trained", "least"),
    [
        ("a -= lr * delta * (a.norm() / n) * 0.05", False, "1e-12"),
        ("a -= lr * delta * a.norm() / n", False, "1e-12"),
        ("a -= lr * g * (a.norm() / n) * 0.05", False, "1e-6"),
        ("a = delta * (a.norm() / n)", True, "1e-6"),
        ("a = g * (a.norm() / n)", True, "1e-2"),
    ],
)
def test_a_length_is_kept_no_further_from_0_than_need_be(at, by_hand, line, trained, least):
    """Of what is 0 with the length nothing is huge, and where no gradient goes back that is none either."""
    given = (by_hand.fact(shape=()), by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0))
    text = "lr * delta * a.norm() / n" if "(a.norm" not in line else "a.norm() / n"
    facts = at("div", given, (by_hand.fact(posinf=1),), extra={"of_weights": trained}, **placed(line, text))
    assert advice(on(facts, ("n", "delta.norm()")))[0].code == line.replace("/ n", f"/ n.clamp_min({least})")


@pytest.mark.parametrize(
    ("names", "most", "least"), [((), 0.0, "1e-6"), ((), 3.0, "1"), ((("length", "len(rows)"),), 0.0, "1")]
)
def test_a_length_of_which_nothing_is_known_may_be_a_norm(at, by_hand, names, most, least):
    given = (by_hand.fact(zeros=9, min=0.0, max=0.0), by_hand.fact(zeros=1, shape=(), min=0.0, max=most))
    facts = at("div", given, (by_hand.fact(nan=9),), **placed("d = d / length", "d / length"))
    assert advice(on(facts, *names))[0].code == f"d = d / length.clamp_min({least})"


def test_a_derivative_that_is_taken_forward_divides_by_the_root(at, by_hand):
    line = "r = (p ** 2).sum(1).sqrt()"
    given = by_hand.fact(zeros=1, min=-1.0), by_hand.fact(zeros=1, min=0.0)
    told = advice(at("div", given, (by_hand.fact(nan=1),), **placed(line, line[4:])))
    assert [one.code for one in told] == ["r = (p ** 2).sum(1).clamp_min(1e-12).sqrt()"]
    assert "jvp" in told[0].text


@pytest.mark.parametrize(
    ("made", "told"), [(["ExpBackward0"], True), (["SoftmaxBackward0"], False), ([], False), (None, True)]
)
def test_what_is_divided_by_its_sum_is_a_softmax_only_where_an_exponential_may_have_made_it(at, by_hand, made, told):
    line = "w = e / e.sum(-1, keepdim=True)"
    given = by_hand.fact(zeros=4), by_hand.fact(zeros=1, min=0.0)
    extra = {"of_weights": True, **({} if made is None else {"made_by": made})}
    found = advice(at("div", given, (by_hand.fact(nan=4),), **placed(line, line[4:]), extra=extra))
    assert any("softmax" in (one.code or "") for one in found) is told


@pytest.mark.parametrize(
    ("line", "names", "least"),
    [
        ("loss = (ce * keep).sum() / keep.sum()", [("keep", "answer[:, 1:].flatten()")], "1e-6"),
        ("loss = (ce * sel).sum() / sel.sum()", [("sel", "(y != -1).float()")], "1"),
        ("loss = nll / total", [("total", "(y != -1).sum().float()")], "1"),
        ("loss = (ce * keep).sum() / keep.sum()", [("keep", "torch.sigmoid(gate)")], "1e-6"),
        ("loss = (w * per).sum() / w.sum()", [("w", "torch.tensor([1.0, 0.3])")], "1e-6"),
    ],
)
def test_a_sum_of_what_is_0_or_1_counts_and_that_of_weights_does_not(at, by_hand, line, names, least):
    shown, below = line.partition("= ")[2], line.rpartition("/ ")[2]
    none = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    facts = at("div", (none, none), (by_hand.fact(shape=(), nan=1),), **placed(line, shown))
    assert advice(on(facts, *names))[0].code == line.replace(f"/ {below}", f"/ {below}.clamp_min({least})")
