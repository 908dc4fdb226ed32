"""Variances, spreads and determinants that rounding or a single value breaks: the mend in whole lines."""

import math
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, History, Meaning, Site
from tests.unit.analysis.mends.told import advice, on, placed, quotient

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
    assert told.code == (f"c = torch.sqrt({first})" if first else None)


@pytest.mark.parametrize(("least", "first"), [(-6e-8, "s = var.clamp_min(1e-12).sqrt()"), (-0.3, None)])
def test_a_variance_that_the_text_does_not_show_is_clamped_first_where_rounding_alone_makes_it_negative(
    at, by_hand, least, first
):
    facts = at("sqrt", (by_hand.fact(min=least),), (by_hand.fact(nan=1),), **placed("s = var.sqrt()", "var.sqrt()"))
    told = advice(on(facts, ("var", "F.conv2d(x * x, self.w) - mu * mu")))
    assert told[0].code == first
    assert "over the same part that F.conv2d averages" in told[0 if first is None else 1].text


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


@pytest.mark.parametrize(
    ("below", "least"),
    [("(g @ g)", "1e-30"), ("g.dot(g)", "1e-30"), ("(g ** 2).sum()", "1e-30"), ("g.square().mean()", "1e-30"),
     ("g.norm()", "1e-6"), ("(g @ h)", "1e-6"), ("g.sum()", "1e-6")],
)  # fmt: skip
def test_a_square_that_no_gradient_goes_through_is_bounded_as_low(at, by_hand, below, least):
    given = (by_hand.fact(zeros=8), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    for free, guard in ((False, least), (True, "1e-6")):
        line = placed(f"p = d / {below} * g", f"d / {below}")
        facts = at("div", given, (by_hand.fact(nan=8),), extra={"of_weights": free}, **line)
        assert f"p = d / {below}.clamp_min({guard}) * g" in [one.code for one in advice(facts)]


@pytest.mark.parametrize(
    ("made", "least"),
    [("sum((b * b).sum() for b in gs)", "1e-30"), ("sum(b.pow(2).sum() for b in gs)", "1e-30"), ("g.norm()", "1e-6")],
)
def test_a_square_that_has_a_name_is_one_too(at, by_hand, made, least):
    given = (by_hand.fact(shape=(), zeros=1), by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    facts = at(
        "div", given, (by_hand.fact(nan=1),), extra={"of_weights": False}, **placed("k = dot / den", "dot / den")
    )
    around = Around(names=(Meaning("den", made, "train.py", 3),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    assert f"k = dot / den.clamp_min({least})" in [one.code for one in advice(facts)]


def test_a_0_that_is_written_as_the_divisor_is_said_to_be_one(at, by_hand):
    line = placed("x = x / 0", "x / 0")
    told = advice(at("div", (by_hand.fact(),), (by_hand.fact(posinf=4, neginf=4),), extra={"arg1": 0}, **line))
    assert [(one.text.startswith("A 0 is written"), one.code) for one in told] == [(True, None)]


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


# ---------------------------------------------------------------------- variances


@pytest.mark.parametrize(
    ("line", "names", "code"),
    [
        ("s = torch.sqrt((x * x).mean(-1) - x.mean(-1) ** 2)", {}, "s = torch.sqrt(x.var(-1, unbiased=False))"),
        ("s = torch.sqrt(v + 1e-5)",
         {"v": "q - m ** 2", "q": "(x ** 2).mean(0, keepdim=True)", "m": "x.mean(0, keepdim=True)"},
         "v = x.var(0, keepdim=True, unbiased=False)"),
        ("s = torch.sqrt(q - m.square())", {"q": "(x ** 2).mean(0)", "m": "x.mean(1)"}, None),
        ("s = torch.sqrt(q - m ** 2)", {}, None),
    ],
)  # fmt: skip
def test_a_variance_is_taken_by_torch_where_the_text_shows_of_what(at, by_hand, line, names, code):
    facts = at("sqrt", (by_hand.fact(min=-1e-6),), (by_hand.fact(nan=1),), **placed(line, line.removeprefix("s = ")))
    assert code in [one.code for one in advice(on(facts, *names.items()))]


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


@pytest.mark.parametrize(
    ("extra", "line", "code"),
    [
        ({"arg1": 0}, "cov = (a.t() @ a) / (n - 1)", "cov = (a.t() @ a) / max(n - 1, 1)"),
        ({}, "cov = a.T @ a / (n - 1)", "cov = a.T @ a / (n - 1).clamp_min(1)"),
    ],
)
def test_a_covariance_of_one_value_is_zero(at, by_hand, extra, line, code):
    given = (by_hand.fact(zeros=16, min=0.0, max=0.0), *([] if extra else [by_hand.fact(zeros=1, shape=(), min=0.0)]))
    facts = at("div", given, (by_hand.fact(nan=16),), extra=extra, **placed(line, line.removeprefix("cov = ")))
    first = advice(facts)[0]
    assert ("no covariance" in first.text, first.code) == (True, code)


@pytest.mark.parametrize(
    ("shape", "world", "code"),
    [((), 1, "((x - x.mean()) ** 2).mean()"), ((3,), 1, None), ((), 2, None)],
    ids=["one number", "columns", "ranks"],
)
def test_one_number_is_told_for_no_variance_of_columns_or_of_all_ranks(at, by_hand, shape, world, code):
    line = "s = torch.sqrt(q - m ** 2)"
    facts = at("sqrt", (by_hand.fact(min=-0.5, absmin=0.5, shape=shape),), (by_hand.fact(nan=1, shape=shape),),
               **placed(line, line.removeprefix("s = ")))  # fmt: skip
    told = advice(replace(facts, world=world))[0]
    assert told.code == code
    assert ("over the same dimensions" in told.text, "ranks" in told.text) == (code is None, world == 2)
