"""Mends that are told in whole lines: pasted, they train, and mean what the script meant."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.guards import least, small, under_root
from nandiag.analysis.report import Origin
from nandiag.events import Alike, Around, Carried, Harm, History, Looked, Meaning, Site, Written


def on(facts, *names, uses=(), written=(), ends=None):
    meanings = tuple(Meaning(name, text, "train.py", 3) for name, text in names)
    around = Around(meanings, tuple(uses), written=tuple(Written(name, lines) for name, lines in written), ends=ends)
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def placed(line, expression):
    first = line.index(expression)
    return {"text": line, "column": (first, first + len(expression)), "file": "train.py", "phase": "loss"}


def quotient(at, by_hand, line, expression, kind, **extra):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, absmin=0.5))
    op = "reciprocal" if expression.startswith("1 /") else "div"
    given = given[1:] if op == "reciprocal" else given
    extra = {"of_weights": True, **extra}
    return at(op, given, (by_hand.fact(**{kind: 1}),), **placed(line, expression), extra=extra)


def advice(facts):
    return explain(facts)[1].suggestions


# ---------------------------------------------------------------------- a root above the division


@pytest.mark.parametrize(
    ("root", "mended"),
    [
        ("torch.sqrt((y * y).sum(-1))", "torch.sqrt((y * y).sum(-1).clamp_min(1e-12))"),
        ("(y ** 2).sum(-1) ** 0.5", "(y ** 2).sum(-1).clamp_min(1e-12) ** 0.5"),
        ("(a - b).sqrt()", "(a - b).clamp_min(1e-12).sqrt()"),
    ],
)
def test_a_root_above_the_division_is_mended_in_its_own_line(at, by_hand, root, mended):
    facts = on(quotient(at, by_hand, "u = y / size[:, None]", "y / size[:, None]", "nan"), ("size", root))
    told = advice(facts)
    assert [one.code for one in told] == [f"size = {mended}"]
    assert "in line 3" in told[0].text


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


# ---------------------------------------------------------------------- how small a guard is


@pytest.mark.parametrize(
    ("absmin", "dtype", "guard"),
    [(None, "float32", "1e-6"), (0.5, "float32", "1e-6"), (2e-8, "float32", "1e-10"), (1e-44, "float32", "1e-30"),
     (2e-8, "float16", "1e-4"), (3.0, "int64", "1")],
)  # fmt: skip
def test_a_guard_of_a_divisor_lies_below_what_was_seen(by_hand, absmin, dtype, guard):
    assert small(by_hand.fact(absmin=absmin, dtype=dtype)) == guard


@pytest.mark.parametrize(
    ("absmin", "absmax", "guard"),
    [(1e-30, 1.0, "1e-12"), (None, 1e-22, "1e-12"), (2e-23, 1e-22, "1e-25"), (1e-44, 1e-20, "1e-37")],
)
def test_a_guard_of_an_argument_is_smaller_only_where_all_that_was_seen_is_small(by_hand, absmin, absmax, guard):
    assert least(by_hand.fact(absmin=absmin, absmax=absmax)) == guard


@pytest.mark.parametrize(
    ("absmin", "dtype", "power"),
    [(None, "float32", -12), (2.0, "float32", -12), (3e-7, "float32", -16), (1e-30, "float32", -36),
     (3e-7, "float16", -6)],
)  # fmt: skip
def test_a_guard_under_a_root_has_a_root_below_what_was_seen(by_hand, absmin, dtype, power):
    assert under_root(by_hand.fact(absmin=absmin, dtype=dtype)) == power


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


@pytest.mark.parametrize("extra", [{"made_by": ["MulBackward0"]}, {"of_weights": False}])
def test_what_is_no_weight_itself_is_clamped(at, by_hand, extra):
    facts = trained(at, by_hand, "y = torch.sqrt(v)", "torch.sqrt(v)", None, op="sqrt", extra=extra)
    assert advice(facts)[0].code == "y = torch.sqrt(v.clamp_min(1e-12))"


# ---------------------------------------------------------------------- no variance


@pytest.mark.parametrize(
    ("inside", "first"),
    [("1 - ab - sigma ** 2", "(1 - ab - sigma ** 2).clamp_min(1e-12)"), ("m - n ** 2", None)],
)
def test_what_is_left_of_one_is_no_variance(at, by_hand, inside, first):
    line = f"c = torch.sqrt({inside})"
    facts = at("sqrt", (by_hand.fact(min=-1e-3, absmin=1e-3),), (by_hand.fact(nan=1),),
               **placed(line, line.removeprefix("c = ")))  # fmt: skip
    told = advice(facts)[0]
    assert told.code == (f"c = torch.sqrt({first})" if first else "((x - x.mean()) ** 2).mean()")


@pytest.mark.parametrize(("least", "first"), [(-6e-8, "s = var.clamp_min(1e-12).sqrt()"),
                                              (-0.3, "((x - x.mean()) ** 2).mean()")])  # fmt: skip
def test_a_variance_that_the_text_does_not_show_is_clamped_first_where_rounding_alone_makes_it_negative(
    at, by_hand, least, first
):
    facts = at("sqrt", (by_hand.fact(min=least),), (by_hand.fact(nan=1),), **placed("s = var.sqrt()", "var.sqrt()"))
    told = advice(on(facts, ("var", "F.conv2d(x * x, self.w) - mu * mu")))
    assert told[0].code == first


@pytest.mark.parametrize(
    ("line", "highest", "code"),
    [
        ("k = torch.exp(-d / (w * med))", 0.0, "k = torch.exp(-d / (w * med).clamp_min(1e-6))"),
        ("k = (-d / med).exp()", 0.0, "k = (-d / med.clamp_min(1e-6)).exp()"),
        ("k = torch.exp(-d / med)", 0.1, None),
        ("k = -d / med", 0.0, None),
    ],
)
def test_behind_an_exponential_what_is_far_below_zero_is_0(at, by_hand, line, highest, code):
    given = (by_hand.fact(zeros=3, min=-2.0, max=highest), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0))
    divided = "-d / (w * med)" if "w" in line else "-d / med"
    facts = at("div", given, (by_hand.fact(nan=3, neginf=5),), **placed(line, divided))
    assert advice(facts)[0].code == code


@pytest.mark.parametrize("call", ["torch.logdet(self.w)", "self.w.logdet()"])
def test_a_determinant_below_0_has_no_logarithm_but_its_size_has_one(at, by_hand, call):
    facts = at("scalar_tensor", (), (by_hand.fact(shape=(), nan=1),),
               **placed(f"return x @ self.w.T, {call}", call))  # fmt: skip
    told = explain(facts)[1]
    assert told.slug == "domain_error"
    assert told.suggestions[0].code == "return x @ self.w.T, torch.linalg.slogdet(self.w).logabsdet"


@pytest.mark.parametrize(("extra", "dtype", "least"), [
    ({"reconstructed": True, "parameters": ["w"]}, "float32", "1e-30"),
    ({"reconstructed": True, "parameters": ["w"]}, "float16", "1e-4"), ({}, "float32", "1e-6"),
])  # fmt: skip
def test_what_an_update_divides_by_is_bounded_below_honest_squares_of_gradients(at, by_hand, extra, dtype, least):
    given = (by_hand.fact(zeros=8), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0, dtype=dtype))
    facts = at("div", given, (by_hand.fact(nan=8),), extra=extra, **placed("r = row / row.mean()", "row / row.mean()"))
    assert f"r = row / row.mean().clamp_min({least})" in [one.code for one in advice(facts)]


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


# ---------------------------------------------------------------------- before the maximum


def shifted(at, by_hand, line, *names, uses=()):
    given = (by_hand.fact(neginf=8), by_hand.fact(neginf=1, shape=(4, 1)))
    return on(at("sub", given, (by_hand.fact(nan=4),), **placed(line, "s - m")), *names, uses=uses)


def test_a_row_that_is_masked_whole_is_mended_before_its_maximum_is_taken(at, by_hand):
    told = advice(shifted(at, by_hand, "e = torch.exp(s - m)", ("m", "s.max(-1, keepdim=True).values")))
    assert told[0].text.startswith("Before line 3, which takes the maximum, put the lowest finite number")
    assert told[0].code == "s = s.clamp_min(torch.finfo(s.dtype).min)"


@pytest.mark.parametrize(
    ("line", "uses"), [("y = m + (s - m).exp().sum(-1).log()", ()), ("e = (s - m).exp()", ("y = torch.log(e.sum())",))]
)
def test_the_logarithm_of_a_sum_of_nothing_has_no_number_in_its_place(at, by_hand, line, uses):
    told = advice(shifted(at, by_hand, line, ("m", "s.amax(-1)"), uses=uses))[0]
    assert told.code == "s = s[s.isfinite().any(-1)]"


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        ("q.masked_fill(~keep, -inf)", "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("q.masked_fill(pad, -inf)", "pad = pad.masked_fill(pad.all(-1, keepdim=True), False)"),
    ],
)
def test_a_mask_is_opened_the_way_it_is_meant(at, by_hand, fill, code):
    assert advice(shifted(at, by_hand, "e = torch.exp(s - m)", ("s", fill)))[1].code == code


@pytest.mark.parametrize(
    ("fill", "code"),
    [
        ('s.masked_fill(~keep.unsqueeze(1), float("-inf"))', "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("torch.where(keep[:, None], s, -math.inf)", "keep = keep | ~keep.any(-1, keepdim=True)"),
        ("s.masked_fill(pad[:, None, :], NEG_INF)", "pad = pad.masked_fill(pad.all(-1, keepdim=True), False)"),
        ("s.masked_fill(keep == 0, -math.inf)", None),
        ("s.masked_fill(~keep[:, :, None], -math.inf)", None),
        ("s + bias", None),
    ],
)
def test_a_softmax_is_given_a_mask_that_is_opened_the_way_it_is_meant(at, by_hand, fill, code):
    given = (by_hand.fact(neginf=8),)
    facts = on(
        at("_softmax", given, (by_hand.fact(nan=4),), **placed("y = s.softmax(-1)", "s.softmax(-1)")), ("s", fill)
    )
    told = advice(facts)
    assert [one.code for one in told] == ["y = s.clamp_min(torch.finfo(s.dtype).min).softmax(-1)", code]
    names = {"keep": torch.tensor([[True, False], [False, False]]), "s": torch.zeros(2, 2, 2), "torch": torch}
    names |= {"pad": ~names["keep"], "math": math, "NEG_INF": -math.inf}
    if code is not None:
        exec(f"{code}\ny = ({fill}).softmax(-1)", names)  # noqa: S102
        assert names["y"].tolist() == [[[1.0, 0.0]] * 2, [[0.5, 0.5]] * 2]


def test_a_mask_that_torch_is_handed_is_opened_the_way_torch_takes_it(at, by_hand):
    given, bad = (by_hand.fact(), by_hand.fact(dtype="bool")), (by_hand.fact(nan=4),)
    call = "F.scaled_dot_product_attention(q, k, v, attn_mask=seen)"
    facts = at("_scaled_dot_product_efficient_attention", given, bad, **placed(f"y = {call}", call))
    assert [one.code for one in advice(facts)] == ["seen = seen | ~seen.any(-1, keepdim=True)"]
    own = at("_softmax", (by_hand.fact(neginf=8),), bad, module_class="MultiheadAttention")
    assert "key_padding_mask.all(-1" in advice(own)[0].code
    assert advice(at("_softmax", (by_hand.fact(neginf=8),), bad))[0].code is None


def test_a_padding_mask_is_opened_where_the_line_hands_it_over(at, by_hand):
    call = "self.attend(x, x, x, key_padding_mask=pad)"
    place = placed(f"y, _ = {call}", call)
    facts = at(
        "_softmax", (by_hand.fact(neginf=8),), (by_hand.fact(nan=4),), **place, module_class="MultiheadAttention"
    )
    (told,) = [one.code for one in advice(facts)]
    attend = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    pad = torch.tensor([[False, True], [True, True]])
    names = {"self": SimpleNamespace(attend=attend), "x": torch.ones(2, 2, 4), "pad": pad}
    exec(told, names)  # noqa: S102
    assert bool(names["y"].isfinite().all())


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


# ---------------------------------------------------------------------- the spread of one value


@pytest.mark.parametrize(
    ("line", "uses", "code"),
    [
        ("y = (g - g.mean()) / g.std()", (), "y = (g - g.mean()) / (g.std(unbiased=False) + 1e-8)"),
        ("y = d / g.var().sqrt()", (), "y = d / (g.var(unbiased=False) + 1e-8).sqrt()"),
        ("s = g.std()", ("y = (g - m) / s",), "s = g.std(unbiased=False) + 1e-8"),
        ("s = g.std()", ("y = (g - m) / (s + 1e-5)",), "s = g.std(unbiased=False)"),
        ("y = (g - m) / (g.std() + 1e-5)", (), "y = (g - m) / (g.std(unbiased=False) + 1e-5)"),
    ],
)
def test_the_spread_of_one_value_is_0_and_is_not_divided_by(at, by_hand, line, uses, code):
    bad = by_hand.fact(shape=(), nan=1, min=None, max=None, absmax=None)
    op = "var" if "var" in line else "std"
    facts = on(at(op, (by_hand.fact(shape=(1,)),), (bad,), **placed(line, f"g.{op}()")), uses=uses)
    assert advice(facts)[0].code == code
    names = {"g": torch.tensor([3.0], requires_grad=True), "m": torch.tensor(3.0), "d": torch.zeros(1)}
    for one in (code, *uses):
        exec(one, names)  # noqa: S102
    names["y"].sum().backward()
    assert not names["y"].any()
    assert names["g"].grad is None or names["g"].grad.isfinite().all()


# ---------------------------------------------------------------------- several roots, determinants, deviations


@pytest.mark.parametrize(
    ("below", "code"),
    [
        ("(a.sum(-1).sqrt() * b ** 0.5)", "(a.sum(-1).clamp_min(1e-12).sqrt() * b.clamp_min(1e-12) ** 0.5)"),
        ("(n * b.sqrt())", "(n * b.clamp_min(1e-12).sqrt())"),
    ],
)  # fmt: skip
def test_each_root_of_a_product_is_kept_from_zero(at, by_hand, below, code):
    facts = quotient(at, by_hand, f"r = c / {below}", f"c / {below}", "nan")
    assert advice(facts)[0].code == f"r = c / {code}"


def test_roots_that_are_multiplied_are_mended_where_they_are_made(at, by_hand):
    facts = quotient(at, by_hand, "r = c / (na * nb[:, None])", "c / (na * nb[:, None])", "nan")
    told = advice(on(facts, ("na", "(a * a).sum(-1).sqrt()"), ("nb", "torch.sqrt(b)")))[0]
    assert told.code == "na = (a * a).sum(-1).clamp_min(1e-12).sqrt()\nnb = torch.sqrt(b.clamp_min(1e-12))"
    assert "na and nb are roots" in told.text


@pytest.mark.parametrize(
    ("name", "inside", "named"),
    [
        ("logdet", "1 + p @ u", True),
        ("log_abs_jac", "1 + (p * u).sum(-1)", True),
        ("log_jac", "torch.diagonal(j, dim1=-2, dim2=-1).prod(-1)", True),
        ("ldj", "j.det() - 1", True),
        ("detail", "1 + p @ u", False),
        ("jacobian", "y + self.shift", False),
        ("quality", "det", False),
        ("logdet", "1 + det", False),
    ],
)
def test_a_negative_determinant_has_a_size_but_a_name_alone_makes_none(at, by_hand, name, inside, named):
    line = f"{name} = torch.log({inside})"
    facts = at("log", (by_hand.fact(min=-0.6),), (by_hand.fact(nan=1),), **placed(line, f"torch.log({inside})"),
               extra={"of_weights": True, "made_by": ["AddBackward0"]})  # fmt: skip
    assert ("determinant" in advice(facts)[0].text and ".abs()" in advice(facts)[0].code) is named


def test_a_negative_determinant_behind_a_name_has_a_size(at, by_hand):
    given = at(
        "log", (by_hand.fact(min=-0.6),), (by_hand.fact(nan=1),), **placed("ld = torch.log(jac)", "torch.log(jac)")
    )
    assert advice(on(given, ("jac", "1 + w @ u")))[0].code == "ld = torch.log(jac.abs().clamp_min(1e-12))"


@pytest.mark.parametrize("half", ["0.5 * logvar", "logvar / 2", "logvar * 0.5"])
def test_a_logarithm_that_is_halved_is_bounded_itself(at, by_hand, half):
    given, out = by_hand.fact(max=100.0, absmax=100.0), by_hand.fact(posinf=1)
    facts = at("exp", (given,), (out,), **placed(f"std = torch.exp({half})", f"torch.exp({half})"))
    assert advice(facts)[0].code == "logvar = logvar.clamp(max=20)"


# ---------------------------------------------------------------------- logarithms of what vanishes


def logarithm(at, by_hand, inside, *names):
    line = f"loss = -torch.log({inside}).mean()"
    facts = at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),), **placed(line, f"torch.log({inside})"))
    return advice(on(facts, *names))[0].code.removeprefix("loss = -").removesuffix(".mean()")


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


# ---------------------------------------------------------------------- variances


@pytest.mark.parametrize(
    ("line", "names", "code"),
    [
        ("s = torch.sqrt((x * x).mean(-1) - x.mean(-1) ** 2)", {}, "s = torch.sqrt(x.var(-1, unbiased=False))"),
        ("s = torch.sqrt(v + 1e-5)",
         {"v": "q - m ** 2", "q": "(x ** 2).mean(0, keepdim=True)", "m": "x.mean(0, keepdim=True)"},
         "v = x.var(0, keepdim=True, unbiased=False)"),
        ("s = torch.sqrt(q - m.square())", {"q": "(x ** 2).mean(0)", "m": "x.mean(1)"}, "((x - x.mean()) ** 2).mean()"),
        ("s = torch.sqrt(q - m ** 2)", {}, "((x - x.mean()) ** 2).mean()"),
    ],
)  # fmt: skip
def test_a_variance_is_taken_by_torch_where_the_text_shows_of_what(at, by_hand, line, names, code):
    facts = at("sqrt", (by_hand.fact(min=-1e-6),), (by_hand.fact(nan=1),), **placed(line, line.removeprefix("s = ")))
    assert code in [one.code for one in advice(on(facts, *names.items()))]


# ---------------------------------------------------------------------- what is called once


@pytest.mark.parametrize("scores", ["net(x)", "self.head(h)", "F.dropout(z)", "z + torch.rand_like(z)"])
def test_what_makes_the_scores_is_not_called_twice(at, by_hand, scores):
    code = logarithm(at, by_hand, "p", ("p", f"torch.softmax({scores}, -1).gather(1, y[:, None])"))
    assert code == (
        f"scores = {scores}; p = torch.softmax(scores, -1).gather(1, y[:, None])  # line 3\n"
        "loss = -torch.log_softmax(scores, -1).gather(1, y[:, None])"
    )


@pytest.mark.parametrize("scores", ["z", "q @ k.transpose(-2, -1) / 8", "torch.matmul(q, k)"])
def test_what_is_the_same_again_needs_no_name(at, by_hand, scores):
    code = logarithm(at, by_hand, "p[0]", ("p", f"torch.softmax({scores}, -1)"))
    assert code == f"torch.log_softmax({scores}, -1)[0]"


def test_a_root_that_is_looked_at_stands_in_the_line_itself(at, by_hand):
    below = "torch.sqrt(v)[:, None]"
    facts = quotient(at, by_hand, f"y = a * x / {below}", f"a * x / {below}", "nan", below_by=["SqrtBackward0"])
    assert advice(facts)[0].code == "y = a * x / torch.sqrt(v.clamp_min(1e-12))[:, None]"


@pytest.mark.parametrize("below", ["var.sqrt()", "torch.sqrt(var)", "self.var.sqrt()"])
def test_what_a_divisor_of_one_number_is_made_of_has_its_lines(at, by_hand, below):
    line = f"y = (x - m) / {below}"
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, shape=(1,), max=0.0)), (by_hand.fact(posinf=9),),
               **placed(line, line.removeprefix("y = ")), extra={"birth": "x"})  # fmt: skip
    name = "self.var" if "self" in below else "var"
    told = advice(on(facts, written=[(name, (8, 13))]))[0].text
    assert told.endswith(f"look at what it is made of: {name}, set in lines 8 and 13.")


def test_a_negative_power_of_many_is_left_out_where_they_are_0(at, by_hand):
    def told(**of):
        base = by_hand.fact(zeros=1, min=0.0, **of)
        facts = at("pow", (base,), (by_hand.fact(posinf=1),), **placed("d = A.sum(1) ** -0.5", "A.sum(1) ** -0.5"),
                   extra={"arg1": -0.5})  # fmt: skip
        return advice(facts)[0].code

    assert told() == "d = torch.where(A.sum(1) != 0, A.sum(1), torch.inf) ** -0.5"
    assert told(shape=()) == "d = A.sum(1).clamp_min(1e-6) ** -0.5"


@pytest.mark.parametrize(("zeros", "bounded"), [(2, False), (1, True)])
def test_where_all_is_0_a_bound_would_leave_no_gradient(at, by_hand, zeros, bounded):
    facts = at("log", (by_hand.fact(zeros=zeros, shape=(3,)),), (by_hand.fact(neginf=zeros),),
               **placed("y = torch.log(a.sum(-1))", "torch.log(a.sum(-1))"),
               extra={"of_weights": True, "made_by": ["SumBackward1", "MulBackward0"]})  # fmt: skip
    assert ("clamp_min" in advice(facts)[0].code) is bounded


def test_a_model_that_ends_in_a_sigmoid_is_to_hand_back_its_scores(at, by_hand):
    given = (by_hand.fact(zeros=20, shape=(32,), min=0.0, max=1e-24, absmax=1e-24),)
    extra = {"of_weights": True, "made_by": ["SqueezeBackward1", "SigmoidBackward0"]}
    facts = at("log", given, (by_hand.fact(neginf=20),), extra=extra,
               **placed("g = -torch.log(self.D(fake)).mean()", "torch.log(self.D(fake))"))  # fmt: skip
    first, second = advice(facts)
    assert first.code == "g = -torch.nn.functional.logsigmoid(self.D(fake)).mean()"
    assert "let self.D hand back the scores" in first.text
    assert second.code == "g = -torch.log(self.D(fake).clamp_min(1e-12)).mean()"


@pytest.mark.parametrize(("names", "least", "text"), [
    (["kf.q", "kf.r"], -0.3, "kf.q, kf.r are below 0"), (["q"], -0.3, "q is below 0"), (["q"], -1e-9, None),
])  # fmt: skip
def test_the_few_weights_that_are_below_0_are_learnt_as_logarithms(at, by_hand, names, least, text):
    facts = at("log", (by_hand.fact(min=least),), (by_hand.fact(nan=1),), **placed("y = S.log()", "S.log()"),
               extra={"of_weights": True, "made_by": ["AddBackward0"], "below_zero": names})  # fmt: skip
    told = advice(facts)[0]
    assert (text or "where rounding alone does it") in told.text
    assert ("self.q.data.log_()" in told.code) is (text is not None)


@pytest.mark.parametrize(
    ("q", "zeros", "code"),
    [
        ("torch.softmax(z, -1)", 0, "(torch.log(p) - torch.log_softmax(z, -1))"),
        ("torch.softmax(net(x), -1)", 0, "(torch.log(p) - torch.log(q.clamp_min(1e-12)))"),
        ("counts / n", 2, "(torch.log(p.clamp_min(1e-12)) - torch.log(q.clamp_min(1e-12)))"),
    ],
)
def test_the_logarithm_of_a_ratio_is_that_of_both_sides(at, by_hand, q, zeros, code):
    given = (by_hand.fact(zeros=zeros, min=0.0), by_hand.fact(zeros=3, min=0.0))
    facts = at("div", given, (by_hand.fact(posinf=3),), **placed("loss = (p * torch.log(p / q)).sum()", "p / q"))
    assert advice(on(facts, ("q", q)))[0].code == f"loss = (p * {code}).sum()"


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


# ---------------------------------------------------------------------- eight bits by hand


@pytest.mark.parametrize(("dtype", "end"), [("float8_e5m2", "57344"), ("float8_e4m3fnuz", "240")])
def test_a_cast_to_eight_bits_ends_at_the_largest_that_they_hold(at, by_hand, dtype, end):
    large = by_hand.fact(max=62890.0, absmax=62890.0)
    line = f"y = (x * scale).to(torch.{dtype}).float()"
    facts = at("_to_copy", (large,), (by_hand.fact(dtype=dtype, nan=1),), extra={"float64_finite": True},
               **placed(line, f"(x * scale).to(torch.{dtype})"))  # fmt: skip
    cause = explain(facts)[1]
    assert cause.slug == "overflow"
    mended = cause.suggestions[0].code
    assert mended == f"y = (x * scale).clamp(-{end}, {end}).to(torch.{dtype}).float()"
    names = {"torch": torch, "x": torch.tensor([3.0, 1e6]), "scale": 1.0}
    exec(mended, names)  # noqa: S102
    assert names["y"].isfinite().all()


# ---------------------------------------------------------------------- lines that compute the like


@pytest.mark.parametrize(
    ("again", "more"),
    [((), ""), ((12,), " Line 12 computes the like: mend that too."),
     ((12, 15), " Lines 12 and 15 compute the like: mend that too.")],
)  # fmt: skip
def test_other_lines_that_compute_the_like_are_told_beside_the_mend(by_hand, again, more):
    look = by_hand.found(5)
    look = replace(look, site=replace(look.site, around=Around(again=again)))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.suggestions[0].text == f"Keep the argument of the logarithm away from zero.{more}"


def test_such_a_line_stands_mended_below_the_mend(by_hand):
    look = by_hand.found(5)
    twin = Alike(12, "    z = (x + w).log()", (8, 21))
    look = replace(look, site=replace(look.site, line=11, around=Around(again=(12, 15), alike=(twin,))))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.suggestions[0].code.splitlines() == [
        "y = x.clamp_min(1e-12).log()",
        "z = (x + w).clamp_min(1e-12).log()  # line 12",
    ]
    assert verdict.suggestions[0].text.endswith(" Lines 12 and 15 compute the like: mend that too.")


# ---------------------------------------------------------------------- targets beyond 0 and 1


@pytest.mark.parametrize(
    ("low", "high", "code"),
    [(-1.0, 1.0, "loss = F.binary_cross_entropy_with_logits(z, (y + 1) / 2)"),
     (1.0, 2.0, "loss = F.binary_cross_entropy_with_logits(z, y - 1)"),
     (0.0, 255.0, "loss = F.binary_cross_entropy_with_logits(z, y.clamp(0, 1))"), (0.0, 1.0, None)],
)  # fmt: skip
def test_targets_beyond_0_and_1_are_the_story_of_a_loss_without_a_bound(at, by_hand, low, high, code):
    given = (by_hand.fact(min=-6e37, absmax=6e37), by_hand.fact(min=low, max=high))
    line = "loss = F.binary_cross_entropy_with_logits(z, y)"
    facts = at("binary_cross_entropy_with_logits", given, (by_hand.fact(neginf=1),), extra={"float64_finite": True},
               **placed(line, line[7:]))  # fmt: skip
    story, _ = explain(facts)
    assert (story and story.suggestions[0].code) == code
    assert story is None or story.slug == "domain_error"


@pytest.mark.parametrize(("loss", "asks"), [(-5.2, True), (0.3, False)])
def test_a_cross_entropy_by_hand_that_went_below_0_asks_for_its_targets(at, by_hand, loss, asks):
    line = "loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"
    past = History((0, 1, 2), (0.7, loss, 0.5), (1.0,) * 3, (0.1,) * 3, (None,) * 3)
    facts = at("log", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), history=past,
               **placed(line, "torch.log(1 - p)"))  # fmt: skip
    story, mechanism = explain(facts)
    assert (story is not None) is asks
    assert mechanism.slug == "log_of_zero"
    assert not asks or story.suggestions[0].code == "assert ((y >= 0) & (y <= 1)).all()"


# ---------------------------------------------------------------------- what is drawn by


def test_weights_that_are_drawn_by_are_equal_where_all_are_0(at, by_hand):
    line = "p = w / w.sum(-1, keepdim=True)"
    given = (by_hand.fact(zeros=9), by_hand.fact(zeros=1, min=0.0, shape=(4, 1)))
    facts = at("div", given, (by_hand.fact(nan=1),), **placed(line, line[4:]))
    told = advice(on(facts, uses=("i = torch.multinomial(p, 1)",)))[0].code
    assert told == "p = (w + 1e-6) / (w + 1e-6).sum(-1, keepdim=True)"
    names = {"torch": torch, "w": torch.tensor([[0.0, 0.0], [1.0, 3.0]])}
    exec(told, names)  # noqa: S102
    assert torch.allclose(names["p"], torch.tensor([[0.5, 0.5], [0.25, 0.75]]), atol=1e-5)
    assert advice(on(facts, uses=("y = p @ v",)))[0].code == "p = w / w.sum(-1, keepdim=True).clamp_min(1e-6)"


@pytest.mark.parametrize("given", ["probs=w", "w"])
def test_a_categorical_of_weights_that_are_all_0(at, by_hand, given):
    line = f"dist = Categorical({given})"
    facts = at("div", (by_hand.fact(zeros=9), by_hand.fact(zeros=1)), (by_hand.fact(nan=1),), **placed(line, line[7:]))
    assert advice(facts)[0].code == f"dist = Categorical({given} + 1e-6)"


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


# ---------------------------------------------------------------------- spreads of one value, or of equal ones


@pytest.mark.parametrize("whole", [True, False])
def test_a_running_variance_of_one_value_is_1_until_there_are_two(at, by_hand, whole):
    none = by_hand.fact("m2", zeros=16, min=0.0, max=0.0, absmax=0.0)
    given, extra = ((none,), {"arg1": 0}) if whole else ((none, by_hand.fact(zeros=1, shape=())), {"of_weights": False})
    facts = at("div", given, (by_hand.fact(nan=16),), extra=extra, **placed("v = m2 / (n - 1)", "m2 / (n - 1)"))
    told = advice(facts)
    assert len(told) == 1
    for n, expected in ((1, 1.0), (5, 0.5)):
        names = {"torch": torch, "m2": torch.full((3,), 2.0 if n > 1 else 0.0), "n": n if whole else torch.tensor(n)}
        exec(told[0].code, names)  # noqa: S102
        assert names["v"].tolist() == [expected] * 3


def test_what_only_an_eps_divides_is_told_where_its_exponential_overflows(at, by_hand):
    one = by_hand.fact(max=1e7, absmax=1e7, shape=(1,))
    facts = at("exp", (one,), (by_hand.fact(posinf=1),), **placed("w = torch.exp(adv)", "torch.exp(adv)"))
    told = advice(on(facts, ("adv", "r / (r.std(unbiased=False) + 1e-8)")))
    assert told[0].code == "adv = r / (r.std(unbiased=False).clamp_min(1e-2))"
    assert "Of one value there is none" in told[0].text
    assert advice(on(facts, ("adv", "r / (r.sum() + 1e-8)")))[0].code == "w = torch.exp(adv.clamp(max=20))"


@pytest.mark.parametrize(
    ("op", "line", "code"),
    [("hypot", "r = torch.hypot(v[:, 1], x)", "r = (v[:, 1] * v[:, 1] + x * x).clamp_min(1e-12).sqrt()"),
     ("atan2", "a = b.atan2(c)", "a = torch.atan2(b, torch.where((c == 0) & (b == 0), torch.ones_like(c), c))"),
     ("hypot", "r = f(x)", "(y * y + x * x).clamp_min(1e-12).sqrt()")],
)  # fmt: skip
def test_a_singular_gradient_of_two_is_mended_in_the_scripts_names(at, by_hand, op, line, code):
    given = (by_hand.fact(), by_hand.fact(zeros=1))
    facts = at("div", given, (by_hand.fact(nan=1),), node=f"{op.capitalize()}Backward0",
               forward_op=f"aten.{op}.default", **placed(line, line[4:]))  # fmt: skip
    assert advice(facts)[0].code == code


def test_a_softmax_by_hand_of_data_is_told_before_the_data(at, by_hand):
    large = by_hand.fact(max=126.0, absmax=126.0)
    facts = at("exp", (large,), (by_hand.fact(posinf=1),), extra={"of_weights": False},
               **placed("q = torch.exp(s)", "torch.exp(s)"))  # fmt: skip
    told = advice(on(facts, uses=("q = q / q.sum(0, keepdim=True)",)))
    assert told[0].code == "q = torch.softmax(s, dim=0)"


@pytest.mark.parametrize(
    ("line", "division"),
    [("p.copy_(s / correction)", "s / correction"), ("layer.weight.data = s / correction", "s / correction")],
)
def test_a_weight_is_not_replaced_by_a_quotient_that_is_none(at, by_hand, line, division):
    """0/0 by a small number instead is 0: all weights would be."""
    given = (by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0))
    facts = at("div", given, (by_hand.fact(nan=16),), **placed(line, division))
    facts = replace(facts, origin=replace(facts.origin, phase="optimizer", function="copy_to_model"))
    told = advice(on(facts, ends=""))
    assert [one.code for one in told] == ["if correction == 0: return"]
    assert "nothing to write" in told[0].text


def test_where_no_autocast_is_none_is_advised(at, by_hand):
    """FSDP2's own mixed precision, or ``.half()``: autocast to bfloat16 would leave weights in float16."""
    given = (by_hand.fact(dtype="float16", max=166.0, absmax=166.0),) * 2
    bad = (by_hand.fact(dtype="float16", posinf=2),)
    line = "scores = self.q(x) @ self.k(x).transpose(1, 2)"
    place = {**placed(line, line.partition(" = ")[2]), "phase": "forward"}
    wide = {"float64_finite": True, "float64_absmax": 75367.0}
    for autocast, said in ((True, True), (False, False), (None, True)):
        extra = wide if autocast is None else {**wide, "autocast": autocast}
        told = advice(at("bmm", given, bad, **place, extra=extra))
        assert any("autocast(" in (one.code or "") for one in told) is said
        assert "bfloat16" in told[0].text


@pytest.mark.parametrize(
    ("line", "method", "live"),
    [("opt.step()", "replay", True), ("opt.step()", "watch", False), ("lr = a / b", "replay", False)],
)
def test_a_rate_of_which_no_line_is_known_may_show_where_every_op_is_watched(at, by_hand, line, method, live):
    rates = History(step=(4, 5), loss=(1.0, 1.0), grad_norm=(1.0, 1.0), lr=(0.1, math.nan), scale=(None, None))
    given, bad = (by_hand.fact(), by_hand.fact()), (by_hand.fact(nan=16),)
    place = {**placed(line, line), "phase": "optimizer"}
    extra = {"value": math.nan, "reconstructed": True, "parameters": ["w"]}
    facts = at("add_", given, bad, **place, extra=extra, history=rates)
    facts = replace(facts, look=replace(facts.look, method=method))
    told = [one.code for cause in explain(facts) if cause is not None for one in cause.suggestions]
    assert ("nandiag run --level op" in told) is live


# ---------------------------------------------------------------------- torch's own functions


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("F.normalize(h.half(), dim=-1)", "F.normalize(h.half().float(), dim=-1)"),
        ("F.cosine_similarity(a, b, dim=1)", "F.cosine_similarity(a.float(), b.float(), dim=1)"),
        ("nn.functional.normalize(h, eps=0.0)", "nn.functional.normalize(h, eps=1e-12)"),
        ("self.unit(h)", None),
    ],
)
def test_an_eps_that_float16_rounds_to_0_is_of_use_in_float32(at, by_hand, call, code):
    given = (by_hand.fact(dtype="float16"), by_hand.fact(zeros=16, dtype="float16", min=0.0))
    told = advice(at("div", given, (by_hand.fact(nan=16, dtype="float16"),), **placed(f"y = {call}", call)))[0]
    assert told.code == (f"y = {code}" if code else "torch.nn.functional.softplus(z) + 1e-6")


def test_in_float32_the_own_eps_of_a_function_is_no_reason(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(zeros=16, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=16),), **placed("y = F.normalize(h)", "F.normalize(h)"))
    assert "where it is made" in advice(facts)[0].text


def test_a_norm_in_float16_is_computed_in_float32_as_the_line_has_it(at, by_hand):
    line = placed("return F.layer_norm(h.half(), (8,), eps=1e-12)", "F.layer_norm(h.half(), (8,), eps=1e-12)")
    facts = at("native_layer_norm", (by_hand.fact(dtype="float16"),), (by_hand.fact(posinf=3, dtype="float16"),),
               extra={"float64_finite": True, "float64_absmax": 1e6, "dtype_max": 65504.0}, **line)  # fmt: skip
    assert "return F.layer_norm(h.half().float(), (8,), eps=1e-12)" in [one.code for one in advice(facts)]


@pytest.mark.parametrize(
    ("line", "call", "names", "code"),
    [
        ("y = Normal(0.0, s).log_prob(x)", "Normal(0.0, s).log_prob(x)", {},
         "y = Normal(0.0, s.clamp_min(1e-6)).log_prob(x)"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "torch.distributions.Laplace(loc=m, scale=F.softplus(z))"},
         "d = torch.distributions.Laplace(loc=m, scale=F.softplus(z).clamp_min(1e-6))"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "Independent(Normal(m, s), 1)"},
         "d = Independent(Normal(m, s.clamp_min(1e-6)), 1)"),
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "Gamma(a, b)"}, "y = d.log_prob(x.clamp_min(1e-6))"),
        # The transform takes the logarithm of the value; and a number is hardly 0.
        ("y = d.log_prob(x)", "d.log_prob(x)", {"d": "TransformedDistribution(Normal(m, s), [ExpTransform()])"},
         "y = d.log_prob(x.clamp_min(1e-6))"),
        ("y = Normal(m, 1.0).log_prob(x)", "Normal(m, 1.0).log_prob(x)", {},
         "y = Normal(m, 1.0).log_prob(x.clamp_min(1e-6))"),
    ],
)  # fmt: skip
def test_a_scale_of_0_is_told_from_a_value_at_the_end_of_the_support(at, by_hand, line, call, names, code):
    facts = at("log", (by_hand.fact(zeros=3, min=0.0, max=9.0),), (by_hand.fact(neginf=3),), **placed(line, call))
    assert advice(on(facts, *names.items()))[0].code == code


@pytest.mark.parametrize("least", [-1.5, 0.5])
def test_zero_to_the_negative_powers_of_a_tensor(at, by_hand, least):
    given = (by_hand.fact(zeros=4, min=0.0, absmin=0.1), by_hand.fact(min=least))
    facts = at("pow", given, (by_hand.fact(posinf=2),), **placed("return b ** h", "b ** h"))
    if least < 0:
        (only,) = advice(facts)
        assert only.code == "return b.clamp_min(1e-6) ** h"
    else:
        assert explain(facts)[1].slug != "division_by_zero"


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("y = torch.where(r > 0, r.sqrt(), torch.zeros_like(r))", True),
        ("y = torch.where(r > 0, 0.0, other=r.sqrt())", True),
        ("y = torch.where(r.sqrt() > 1, r, 0.0)", False),
        ("y = r.sqrt()", False),
    ],
)
def test_what_torch_where_leaves_out_is_kept_within_the_domain_before_it(at, by_hand, line, chosen):
    facts = at("sqrt", (by_hand.fact(min=-3.0),), (by_hand.fact(nan=5),), **placed(line, "r.sqrt()"),
               extra={"of_weights": True, "made_by": ["AddmmBackward0"], "below_zero": ["w"]})  # fmt: skip
    told = advice(facts)
    assert (("torch.where" in told[0].text), len(told)) == ((True, 1) if chosen else (False, len(told)))
    if chosen:
        assert "r.clamp_min(1e-12).sqrt()" in told[0].code


# ---------------------------------------------------------------------- rows that do not vary


@pytest.mark.parametrize("line", ["corr = torch.corrcoef(h.T)", "off = torch.corrcoef(h.T).triu(1)"])
def test_a_correlation_with_a_row_that_does_not_vary_is_that_of_rows_of_length_1(at, by_hand, line):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=4),), **placed(line, "torch.corrcoef(h.T)"),
               extra={"of_weights": True, "below_by": ["SqrtBackward0"]})  # fmt: skip
    mended = advice(facts)[0].code
    h = torch.randn(8, 4)
    names = {"torch": torch, "h": h}
    exec(mended, names)  # noqa: S102
    name = line.partition(" ")[0]
    torch.testing.assert_close(names[name], eval(line.partition("= ")[2], {"torch": torch, "h": h}))  # noqa: S307
    h = torch.randn(8, 4).mul(torch.tensor([1.0, 0.0, 1.0, 1.0])).requires_grad_()
    names = {"torch": torch, "h": h}
    exec(mended, names)  # noqa: S102
    names[name].square().sum().backward()
    assert names[name].isfinite().all()
    assert h.grad.isfinite().all()


# ---------------------------------------------------------------------- what a relu has left at 0


@pytest.mark.parametrize(("zeros", "soft"), [(12, ["torch.nn.functional.softplus(z)"]), (2, [])])
def test_where_a_relu_left_most_at_0_a_bound_would_leave_it_untrained(at, by_hand, zeros, soft):
    given, out = by_hand.fact(zeros=zeros, min=0.0), by_hand.fact(neginf=zeros)
    facts = at("log", (given,), (out,), **placed("loss = rate.log()", "rate.log()"),
               extra={"of_weights": True, "made_by": ["ReluBackward0", "AddmmBackward0"]})  # fmt: skip
    assert [one.code for one in advice(facts)] == [*soft, "loss = rate.clamp_min(1e-12).log()"]


# ---------------------------------------------------------------------- mends that train, and keep the model


def test_rows_of_a_weight_that_were_pruned_give_0_and_have_no_gradient(at, by_hand):
    line = "w = self.weight / self.weight.norm(dim=1, keepdim=True)"
    given = by_hand.fact("a.weight", zeros=8, min=-1.0), by_hand.fact(zeros=2, min=0.0)
    told = advice(at("div", given, (by_hand.fact(nan=8),), **placed(line, line[4:]), extra={"of_weights": True}))
    assert len(told) == 1
    assert "a.weight" in told[0].text
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    named = {"self": SimpleNamespace(weight=weight), "torch": torch}
    exec(told[0].code, named)  # noqa: S102
    named["w"].sum().backward()
    assert named["w"].tolist()[1] == weight.grad.tolist()[1] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("line", "leaves"),
    [("p.data /= total", True), ("p.data.div_(total)", True), ("p.grad /= total", False), ("m /= total", False)],
)
def test_weights_that_are_merged_by_a_count_of_0_are_left_as_they_are(at, by_hand, line, leaves):
    given = by_hand.fact(zeros=16, min=0.0, max=0.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div_", given, (by_hand.fact(nan=16),), **{**placed(line, line), "phase": "optimizer"})
    assert (advice(on(facts, ends=""))[0].code == "if total == 0: return") is leaves


@pytest.mark.parametrize(
    ("rate", "setting", "code"),
    [
        (math.nan, 'g["lr"] = base * float(pace)', 'g["lr"] = min(0.004, base * float(pace))'),
        (math.inf, "g['lr'] = pace", "g['lr'] = min(0.004, pace)"),
        (-0.1, 'g["lr"] = pace', 'train.py:20: g["lr"] = pace'),
        (math.nan, "sched = LambdaLR(opt, factor)", "train.py:20: sched = LambdaLR(opt, factor)"),
    ],
)
def test_a_bad_rate_is_bounded_by_the_most_that_it_was(at, by_hand, rate, setting, code):
    past = History((3, 4, 5), (1.0,) * 3, (1.0,) * 3, (0.004, 0.002, rate), (None,) * 3)
    line = "progress = value / change"
    given = by_hand.fact(shape=(), min=0.1, max=0.1), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), history=past,
               extra={"rate_set_at": [f"train.py:20: {setting}"]}, **placed(line, "value / change"))  # fmt: skip
    story, told = explain(replace(facts, origin=replace(facts.origin, phase="optimizer")))
    assert story.suggestions[0].code == code
    assert all("1e-6" not in (one.code or "") for one in told.suggestions)


def test_a_mended_rate_of_nan_is_the_bound():
    assert min(0.004, math.nan) == 0.004
    assert min(0.004, torch.tensor(math.nan)) == 0.004


@pytest.mark.parametrize(("rated", "least"), [(True, "1"), (False, "1e-6")])
def test_what_a_rate_is_made_of_in_numpy_is_at_least_one(at, by_hand, rated, least):
    line = "return np.sqrt(WARM) * t ** -0.5"
    extra = {"heard": True, "number": True, "numpy": "divide by zero encountered in scalar power"}
    extra |= {"rate_set_at": ["train.py:48: sched = LambdaLR(opt, factor)"]} if rated else {}
    facts = at(None, (), (by_hand.fact(neginf=8),), extra=extra, **placed(line, "t ** -0.5"))
    assert advice(facts)[0].code == f"return np.sqrt(WARM) * np.maximum(t, {least}) ** -0.5"


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("bfloat16", "return -torch.log((-torch.log(u)).clamp_min(1e-12))"),
        ("float16", "return -torch.log((-torch.log(u)).float().clamp_min(1e-12)).half()"),
    ],
)
def test_a_logarithm_that_is_mended_has_the_dtype_that_it_had(at, by_hand, dtype, code):
    line = "return -torch.log(-torch.log(u))"
    given = by_hand.fact(zeros=1, dtype=dtype, max=5.0, absmax=5.0)
    facts = at("log", (given,), (by_hand.fact(neginf=1, dtype=dtype),), **placed(line, "torch.log(-torch.log(u))"))
    assert advice(facts)[0].code == code
    u = torch.tensor([1.0, 0.5], dtype=getattr(torch, dtype))
    mended = eval(code.removeprefix("return "), {"torch": torch, "u": u})  # noqa: S307
    assert mended.dtype == u.dtype
    assert mended.isfinite().all()


def test_a_count_by_a_sum_of_the_script_is_at_least_one_first_of_all(at, by_hand):
    line = "weight = negatives / positives"
    given = by_hand.fact(shape=(), min=96.0, max=96.0), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), **placed(line, "negatives / positives"))
    told = advice(on(facts, ("positives", "torch.tensor(sum((c[0] for c in counts)))")))
    assert told[0].code == "weight = negatives / positives.clamp_min(1)"


@pytest.mark.parametrize(("above", "first"), [(96.0, True), (0.5, False), (1.0, False)])
def test_a_whole_number_by_0_is_one_count_by_another_as_a_rule(at, by_hand, above, first):
    line = "weight = negatives / positives"
    given = by_hand.fact(shape=(), min=above, max=above), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0)
    facts = at("div", given, (by_hand.fact(shape=(), posinf=1),), **placed(line, "negatives / positives"))
    assert (advice(facts)[0].code == "weight = negatives / positives.clamp_min(1)") is first


@pytest.mark.parametrize("number", ["torch.finfo(torch.float32).min", "-1e9"])
def test_a_mask_by_a_number_that_half_precision_has_not_is_mended_in_its_line(at, by_hand, number):
    line = f"bias = (1.0 - mask)[:, None] * {number}"
    given = by_hand.fact(dtype="float16", min=0.0, max=1.0, zeros=4)
    facts = at("mul", (given,), (by_hand.fact(dtype="float16", neginf=4),), **placed(line, line[7:]),
               extra={"arg1": -3.4e38, "float64_finite": True, "of_weights": False})  # fmt: skip
    assert advice(facts)[0].code == "bias = (1.0 - mask)[:, None] * torch.finfo(torch.float16).min"


@pytest.mark.parametrize(
    ("line", "name", "shown"),
    [("loss = f(net(x).squeeze(1), y)", None, "x"), ("return self.f(x)", "x", "x"), ("h = enc(a, b)", "b", "b"),
     ("h = enc(a, b)", None, None), ("h = enc(load(a))", "input", None)],
)  # fmt: skip
def test_bad_data_is_checked_by_the_scripts_own_name(at, by_hand, line, name, shown):
    call = {"l": "net(x)", "r": "self.f(x)", "h": line[4:]}[line[0]]
    facts = at("addmm", (by_hand.fact(name, nan=1),), (by_hand.fact(nan=4),), source="input", **placed(line, call))
    told = explain(facts)[0].suggestions
    assert told[0].code == f"assert torch.isfinite({shown or 'x'}).all()"
    assert (f"{shown} = torch.nan_to_num({shown}, nan=0.0)" in [one.code for one in told]) is (shown is not None)


@pytest.mark.parametrize("ends", [None, ""])
def test_an_average_of_nothing_is_left_only_where_it_is_known_how(at, by_hand, ends):
    line = "p.copy_(total / (1 - decay ** self.t))"
    facts = at("div", (by_hand.fact(zeros=16, min=0.0),), (by_hand.fact(nan=16),), extra={"arg1": 0.0},
               **placed(line, "total / (1 - decay ** self.t)"))  # fmt: skip
    told = advice(on(facts, ends=ends))[0]
    assert ("leave" in told.text) is (told.code is not None) is (ends is not None)
