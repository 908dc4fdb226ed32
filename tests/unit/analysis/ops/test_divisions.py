"""Divisors that are 0: told by what they are, and mended in the line's own words."""

import re
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site
from tests.unit.analysis.ops.told import by_zero, codes, mechanism, on


@pytest.mark.parametrize(
    ("low", "zeros", "code"),
    [(0.0, 1, "y = a / b.clamp_min(1e-6)"), (-1.0, 1, "y = a / torch.where(b == 0, 1e-6, b)")],
)
def test_a_divisor_that_may_be_negative_is_not_clamped(at, by_hand, low, zeros, code):
    facts = at(
        "div", (by_hand.fact(), by_hand.fact(zeros=zeros, min=low)), (by_hand.fact(nan=1),), **on("y = a / b", "a / b")
    )
    assert codes(facts) == [code]


@pytest.mark.parametrize(("zeros", "first"), [(16, True), (1, False)])
def test_a_divisor_that_another_rank_sent_is_told_with_its_call(at, by_hand, zeros, first):
    divisor = by_hand.fact(zeros=zeros, min=0.0)
    extra = {"arrived": [[1, "broadcast", 1, "/home/me/train.py", 18]]}
    facts = at("div", (by_hand.fact(), divisor), (by_hand.fact(posinf=1),), extra=extra, **on("y = a / b", "a / b"))
    found = mechanism(replace(facts, origin=replace(facts.origin, file="/home/me/train.py")))
    assert found.evidence[1] == "b came from rank 1, by the broadcast in line 18"
    told = "All of b is 0 as it came from rank 1, by the broadcast in line 18. Look at what filled it there before, "
    assert (found.suggestions[0].text == f"{told}and at whether that rank is the one to send it.") is first
    assert any("b" in (one.code or "") for one in found.suggestions)


def test_a_number_that_another_rank_sent_is_told_where_it_is_inverted(at, by_hand):
    extra = {"arrived": [[0, "recv", 2, "/home/me/train.py", 23]]}
    divisor, bad = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0), by_hand.fact(shape=(), posinf=1)
    facts = at("reciprocal", (divisor,), (bad,), extra=extra, **on("w.append(1 / buf[-1])", "1 / buf[-1]"))
    found = mechanism(replace(facts, origin=replace(facts.origin, file="/home/me/train.py")))
    assert found.evidence[1] == "the divisor came from rank 2, by the recv in line 23"
    assert found.suggestions[0].text.startswith(
        "All of the divisor is 0 as it came from rank 2, by the recv in line 23."
    )


@pytest.mark.parametrize("elsewhere", [True, False])
def test_an_infinity_at_another_index_of_the_divisor_is_no_cause(at, by_hand, elsewhere):
    divisor = by_hand.fact(zeros=1, posinf=1, min=0.0)
    extra = {"bad_elsewhere": True} if elsewhere else {}
    found = mechanism(at("div", (by_hand.fact(), divisor), (by_hand.fact(nan=1),), extra=extra))
    assert (found is not None and found.slug == "division_by_zero") is elsewhere


@pytest.mark.parametrize(("number", "code"), [(0, "y = a / max(n, 1)"), (0.0, "y = a / max(n, 1e-6)")])
def test_a_number_as_divisor(at, by_hand, number, code):
    facts = at("div", (by_hand.fact(),), (by_hand.fact(nan=1),), extra={"arg1": number}, **on("y = a / n", "a / n"))
    assert codes(facts) == [code]


def test_a_vector_divided_by_its_norm_has_a_function_of_its_own(at, by_hand):
    place = on("return x / x.norm(dim=-1, keepdim=True)", "x / x.norm(dim=-1, keepdim=True)")
    facts = at("div", (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),), **place)
    assert codes(facts)[1] == "return torch.nn.functional.normalize(x, dim=-1)"


@pytest.mark.parametrize("op", ["div", "_foreach_div", "_foreach_div_"])
def test_a_division_of_many_at_once_is_one(at, by_hand, op):
    found = mechanism(at(op, (by_hand.fact(), by_hand.fact(zeros=1, min=0.0)), (by_hand.fact(nan=1),)))
    assert (found.slug, found.evidence[0][:34]) == ("division_by_zero", "the divisor of div holds 1 zero in")


def test_the_root_under_one(at, by_hand):
    place = on("return x * torch.rsqrt(m)", "torch.rsqrt(m)")
    facts = at("rsqrt", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(posinf=1),), **place)
    assert mechanism(facts).evidence == ("the input of rsqrt holds 1 zero in 16 values; 1/sqrt(0) is Inf",)
    assert codes(facts) == ["return x * torch.rsqrt(m + 1e-6)"]


def test_a_number_that_half_precision_rounded_to_zero(at, by_hand):
    zero = by_hand.fact(zeros=1, shape=(), dtype="bfloat16", min=0.0, max=0.0, absmax=0.0)
    facts = at("div", (zero, zero), (by_hand.fact(nan=1, shape=(), dtype="bfloat16"),))
    story, found = explain(facts)
    assert (story.slug, found.slug) == ("precision_underflow", "division_by_zero")
    assert "float32" in found.suggestions[0].text
    assert story.strength < found.strength


def test_a_divisor_that_is_a_root_is_guarded_within_it(at, by_hand):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0))
    facts = at("div", given, (by_hand.fact(nan=1),), **on("y = a / torch.sqrt(v)", "a / torch.sqrt(v)"))
    assert codes(facts) == ["y = a / torch.sqrt(v.clamp_min(1e-12))"]


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


def test_of_nan_it_is_not_said_that_what_is_divided_is_not_0(at, by_hand):
    given = (by_hand.fact(shape=()), by_hand.fact(None, shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0))
    extra = {"reconstructed": True, "parameters": ["w"]}
    shown = on("lr = a.sum() / b.sum()", "a.sum() / b.sum()")
    facts = at("div", given, (by_hand.fact(nan=1, shape=()),), extra=extra, **{**shown, "phase": "optimizer"})
    texts = [one.text for one in mechanism(facts).suggestions]
    assert not any("what it divides is not" in text for text in texts), texts


@pytest.mark.parametrize(
    ("expression", "name", "told", "others"),
    [
        ("self.sum / self.count", "norm.count", "where it is set, updated or restored (a buffer", []),
        ("total / n_valid", None, "where it is set, updated or restored.", ["mean = total / n_valid.clamp_min(1)"]),
        ("sim / self.factor", "factor", "where it is set, updated or restored.", []),
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


@pytest.mark.parametrize(
    ("said", "line", "expression", "code"),
    [
        ("divide by zero encountered in log", "x = np.log(prices)", "np.log(prices)",
         "x = np.log(np.maximum(prices, 1e-12))"),
        ("invalid value encountered in divide", "x = (x - m) / s", "(x - m) / s", "x = (x - m) / np.maximum(s, 1e-6)"),
        ("divide by zero encountered in power", "w = (n * p[i]) ** -b", "(n * p[i]) ** -b",
         "w = np.where(n * p[i] != 0, n * p[i], np.inf) ** -b"),
        ("invalid value encountered in power", "lr = top * np.power(left, 0.9)", "np.power(left, 0.9)",
         "lr = top * np.power(np.maximum(left, 1e-6), 0.9)"),
        ("overflow encountered in exp", "w = np.exp(z)", "np.exp(z)", None),
        ("invalid value", "r = [np.mean(p), len(p)]", "np.mean(p)", "r = [(np.mean(p) if len(p) else 0.0), len(p)]"),
        ("invalid value encountered in scalar divide", "m = p.mean()", "p.mean()", "m = (p.mean() if len(p) else 0.0)"),
        ("invalid value", "m = p.mean(axis=0)", "p.mean(axis=0)", None),
    ],
)  # fmt: skip
def test_a_line_that_numpy_warned_of(at, by_hand, said, line, expression, code):
    extra = {"numpy": said, "heard": True}
    story, _ = explain(at(None, (), (by_hand.fact(nan=2),), extra=extra, phase="data", **on(line, expression)))
    assert (story.slug, story.evidence[0], story.suggestions[0].code) == ("data_nonfinite", f"numpy says: {said}", code)
    infinite = not said.startswith("invalid")
    assert any("a line behind this one made NaN of it" in one for one in story.evidence) is infinite
    assert not any("while loading" in one.text for one in story.suggestions)


@pytest.mark.parametrize(
    ("said", "line", "expression", "code"),
    [
        ("invalid value encountered in power", "decay = np.power(1.0 - done, self.power)",
         "np.power(1.0 - done, self.power)", "decay = np.power(np.maximum(1.0 - done, 0), self.power)"),
        ("invalid value encountered in scalar power", "decay = (1.0 - done) ** 0.9", "(1.0 - done) ** 0.9",
         "decay = np.maximum(1.0 - done, 0) ** 0.9"),
        ("divide by zero encountered in scalar power", "rate = step ** -0.5", "step ** -0.5",
         "rate = np.maximum(step, 1) ** -0.5"),
    ],
)  # fmt: skip
def test_a_rate_behind_the_end_of_its_schedule_is_0_and_one_of_no_step_that_of_the_first(
    at, by_hand, said, line, expression, code
):
    extra = {"numpy": said, "heard": True, "rate_set_at": ["train.py:20: g['lr'] = base * decay"]}
    story, _ = explain(at(None, (), (by_hand.fact(nan=2),), extra=extra, phase="data", **on(line, expression)))
    assert story.suggestions[0].code == code


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


@pytest.mark.parametrize(
    ("below", "counted"),
    [
        ("self.hist[n][-2]", False),
        ("seen[tasks[n]]", True),
        ("loss[n]", False),
        ("past[steps]", False),
        ("state['count']", True),
        ("counts[i]", True),
        ("n[0]", True),
    ],
)
def test_what_is_looked_up_by_a_count_is_none(at, by_hand, below, counted):
    facts = by_zero(at, by_hand, f"r = now / {below}", f"now / {below}")
    assert any(f"{below}.clamp_min(1)" in (code or "") for code in codes(facts)) is counted
    whole = by_hand.fact(zeros=2, min=0.0, max=2.0)
    facts = by_zero(at, by_hand, f"r = now / {below}", f"now / {below}", nan=1, zero=whole)
    assert any(f"{below}.clamp_min(1)" in (code or "") for code in codes(facts)) is counted


@pytest.mark.parametrize(
    ("of_weights", "phase", "told"), [(True, "loss", True), (False, "data", False), (True, "optimizer", False)]
)
def test_a_gradient_is_told_of_only_where_one_goes_back(at, by_hand, of_weights, phase, told):
    zero = by_hand.fact(zeros=1, shape=(16,), min=0.0)
    facts = by_zero(at, by_hand, "f = clip / sq.sqrt()", "clip / sq.sqrt()", nan=1, zero=zero, phase=phase,
                    extra={"of_weights": of_weights})  # fmt: skip
    (only,) = mechanism(facts).suggestions
    assert ("gradient" in only.text) is told
    assert only.code == "f = clip / sq.clamp_min(1e-12).sqrt()"


@pytest.mark.parametrize(
    ("op", "extra", "line", "module", "code"),
    [
        ("native_group_norm", {"arg3": 6, "arg6": 4, "arg7": 0.0}, "y = self.gn(x)", "net.gn", "self.gn.eps = 1e-5"),
        ("native_layer_norm", {"arg4": 0.0}, "y = self.net(x)", "net.2", "torch.nn.GroupNorm(..., eps=1e-5)"),
        ("native_layer_norm", {"arg4": 0.0}, "y = F.layer_norm(x, (4,), eps=0.0)", "net",
         "y = F.layer_norm(x, (4,), eps=1e-5)"),
        ("native_layer_norm", {"arg4": 1e-5}, "y = self.gn(x)", "net.gn", None),
        ("native_layer_norm", {}, "y = self.gn(x)", "net.gn", None),
    ],
)  # fmt: skip
def test_a_normalisation_with_an_eps_of_0_divides_by_the_root_of_a_variance_of_0(
    at, by_hand, op, extra, line, module, code
):
    facts = at(op, (by_hand.fact(zeros=4),), (by_hand.fact(nan=4), by_hand.fact(posinf=1)), extra=extra, module=module,
               module_class="GroupNorm", **on(line, line[4:]))  # fmt: skip
    found = explain(facts)[1]
    assert (code is None) is (found is None or found.slug != "division_by_zero")
    if code is not None:
        assert [one.code for one in found.suggestions] == [code]
        assert "the eps of GroupNorm is 0" in found.evidence[0]


@pytest.mark.parametrize(
    ("op", "out", "seen"),
    [("reciprocal", {"neginf": 1}, "1/-0 is -Inf"), ("reciprocal", {"posinf": 1, "neginf": 1}, "1/0 is Inf"),
     ("div", {"neginf": 1}, "x/0 is -Inf"), ("div", {"posinf": 1}, "x/0 is Inf")],
)  # fmt: skip
def test_what_one_over_zero_is_has_the_sign_of_what_came_out(at, by_hand, op, out, seen):
    zero = by_hand.fact(zeros=1, min=-0.0)
    facts = at(op, (zero,) if op == "reciprocal" else (by_hand.fact(), zero), (by_hand.fact(**out),))
    assert seen in explain(facts)[1].evidence[0]


def test_of_numbers_whose_squares_leave_the_dtype_no_variance_of_0_is_spoken(at, by_hand):
    given = by_hand.fact(max=1e30, absmax=1e30)
    facts = at("native_layer_norm", (given,), (by_hand.fact(nan=4),), extra={"arg4": 0.0}, module="net.gn",
               module_class="LayerNorm", **on("y = self.gn(x)", "self.gn(x)"))  # fmt: skip
    assert not any(one is not None and one.slug == "division_by_zero" for one in explain(facts))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int64"])
def test_a_count_of_few_bits_that_is_zero_may_have_wrapped(at, by_hand, dtype):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, max=18.0, dtype=dtype))
    facts = at("div", given, (by_hand.fact(posinf=1),), **on("y = a / n.unsqueeze(1)", "a / n.unsqueeze(1)"))
    first, *others = mechanism(facts).suggestions
    assert ("make it in int64" in first.text) is (dtype != "int64")
    assert "y = a / n.unsqueeze(1).clamp_min(1)" in {one.code for one in (first, *others)}


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("torch.tensor(sizes, dtype=torch.uint8)", "n = torch.tensor(sizes, dtype=torch.int64)"),
        ("mask.sum(1).byte()", "n = mask.sum(1).long()"),
        ("torch.from_numpy(sizes.astype('uint8'))", "n = torch.from_numpy(sizes.astype('int64'))"),
    ],
)
def test_a_count_of_few_bits_is_made_wider_where_the_text_makes_it(at, by_hand, made, code):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, max=18.0, dtype="uint8"))
    facts = at("div", given, (by_hand.fact(posinf=1),), **on("y = a / n", "a / n"))
    around = Around((Meaning("n", made, "train.py", 3),))
    facts = replace(facts, look=replace(facts.look, site=Site(around=around)))
    first = mechanism(facts).suggestions[0]
    assert ("256 is 0" in first.text, first.code) == (True, code)


def test_a_length_that_is_0_is_kept_above_it_in_the_line(at, by_hand):
    zero, bad = by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0), by_hand.fact(posinf=1, shape=())
    line = "g = d * (0.5 / norm)"
    for made in ("torch.sqrt(sum(d.pow(2).sum() for d in deltas))", "sum((d**2).sum() for d in deltas) ** 0.5"):
        known = at("reciprocal", (zero,), (bad,), phase="forward", **on(line, "0.5 / norm"))
        around = Around(names=(Meaning("norm", made, "train.py", 7),))
        look = replace(known.look, site=Site(op="aten.reciprocal.default", around=around))
        told = explain(replace(known, look=look))[1].suggestions[0]
        assert told.code == "g = d * (0.5 / norm.clamp_min(1e-6))", told


@pytest.mark.parametrize(("made", "code"), [("a[1] - a[0]", "(a[1] - a[0] or 1e-6)"), ("a[1]", "max(a[1], 1e-6)")])
def test_a_difference_that_divides_may_be_below_zero(at, by_hand, made, code):
    text = f"b / ({made})" if "-" in made else f"b / {made}"
    facts = at(
        "div", (by_hand.fact(zeros=16),), (by_hand.fact(nan=16),), extra={"arg1": 0.0}, **on(f"y = {text}", text)
    )
    assert codes(facts)[0] == f"y = b / {code}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_half_precision_is_said_to_round_it_does_round(at, by_hand, dtype):
    divisor = by_hand.fact(zeros=1, min=0.0, dtype=dtype)
    story, mechanism = explain(at("div", (by_hand.fact(dtype=dtype), divisor), (by_hand.fact(nan=1, dtype=dtype),)))
    below, near = map(float, re.search(r"below (\S+) to 0, and all within (\S+) of 1", story.evidence[0]).groups())
    kind = getattr(torch, dtype)
    assert torch.tensor(below, dtype=torch.float64).to(kind) == 0
    assert torch.tensor(1.1 * below, dtype=torch.float64).to(kind) > 0
    assert (torch.tensor([1 - near, 1 + near], dtype=torch.float64).to(kind) == 1).all()
    assert any(f"{dtype} rounded it to zero" in one.text for one in mechanism.suggestions)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("h = (h * (tol / err) ** 0.5).clamp(0.05, 0.5)",
         "h = (h * (tol / err.clamp_min(1e-12)) ** 0.5).clamp(0.05, 0.5)"),
        ("h = torch.clamp(tol / err, max=2.0)", "h = torch.clamp(tol / err.clamp_min(1e-12), max=2.0)"),
        ("h = (h * (tol / err) ** 0.5).clamp(min=0.05)", None),
        ("h = h * tol / err", None),
    ],
)  # fmt: skip
def test_a_divisor_is_kept_above_0_where_a_bound_behind_takes_the_infinity_alone(at, by_hand, line, code):
    expression = "tol / err" if "h * tol" not in line else "h * tol / err"
    told = codes(by_zero(at, by_hand, line, expression, op="reciprocal", phase="forward"))
    assert (told[0] if told else None) == code
