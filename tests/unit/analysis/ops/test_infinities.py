"""Infinities that meet masks, zeros and each other, and numbers that outgrow their dtype."""

import pytest

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends import told
from tests.unit.analysis.mends.told import placed as at_line
from tests.unit.analysis.ops.told import codes, mechanism, on


def test_two_masks_that_are_added(at, by_hand):
    lowest = -3.4028234663852886e38
    mask = by_hand.fact(min=lowest, max=0.0, absmax=-lowest)
    story, found = explain(at("add", (mask, mask), (by_hand.fact(neginf=3),), extra={"float64_finite": True}))
    assert (story.slug, found.slug) == ("attention_fully_masked", "overflow")
    scores = by_hand.fact(min=lowest, max=9.0, absmax=-lowest)
    assert explain(at("add", (mask, scores), (by_hand.fact(neginf=3),), extra={"float64_finite": True}))[0] is None


def test_a_number_that_was_bad_itself_is_said(at, by_hand):
    facts = at("mystery", (by_hand.fact(),), (by_hand.fact(nan=1),), extra={"arg1": "inf", "float64_absmax": "inf"})
    assert mechanism(facts).evidence == ("a number that mystery was given is +inf",)


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


def test_an_infinity_that_turned_into_nan_is_said_to_have_come_in(at, by_hand):
    came = (by_hand.fact(posinf=4), by_hand.fact())
    told = mechanism(at("addmm", came, (by_hand.fact(nan=2),))).suggestions[0].text
    assert told.startswith("+Inf went into addmm, and NaN came out")
    assert "nothing that was recorded" in mechanism(at("mystery", came[1:], (by_hand.fact(nan=2),))).suggestions[0].text


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


@pytest.mark.parametrize(
    ("expression", "code"),
    [("0 * a.detach()", "0 * a.detach().clamp_min(-1e30)"), ("a * 0.0", "a.clamp_min(-1e30) * 0.0"), ("a * b", None)],
)
def test_the_one_tensor_beside_a_number_is_bounded_by_its_own_name(at, by_hand, expression, code):
    facts = at("mul", (by_hand.fact(neginf=1),), (by_hand.fact(nan=1),), extra={"arg1": 0.0},
               **on(f"h = z + {expression}", expression))  # fmt: skip
    told = mechanism(facts).suggestions[0].code
    assert told == ("x.clamp(-1e30, 1e30)" if code is None else f"h = z + {code}")


def test_an_infinity_that_stands_for_what_is_missing_is_written_as_a_large_number(at, by_hand):
    given = (by_hand.fact(zeros=1), by_hand.fact(posinf=1))
    text = 'r = torch.where(seen, r0, torch.tensor(float("inf")))'
    extra = {"masked_at": ["/home/me/kalman.py", 24], "masked_text": text}
    facts = at("mul", given, (by_hand.fact(nan=1),), extra=extra, **on("p = p - k * s * k", "k * s"))
    found = mechanism(facts)
    assert found.evidence == ("0 times +Inf is NaN: 1 zero on the other side", "The +Inf was written at kalman.py:24.")
    assert [one.code for one in found.suggestions] == [
        "r = torch.where(seen, r0, torch.tensor(1e9))", "p = p - k * s.clamp_max(1e30) * k",
    ]  # fmt: skip
    below = at("mul", given, (by_hand.fact(nan=1),), extra={**extra, "masked_text": "x = y.masked_fill(m, -torch.inf)"})
    assert len(mechanism(below).suggestions) == 1


@pytest.mark.parametrize(
    ("expression", "slug"),
    [
        ("-1.0 + logvar2 - logvar1", "domain_error"),
        ("scores + bias - (scores + bias).amax(-1, keepdim=True)", "attention_fully_masked"),
        ("scores - low", "attention_fully_masked"),
    ],
)
def test_what_is_taken_off_a_sum_is_a_maximum_where_the_text_says_so(at, by_hand, expression, slug):
    given = (by_hand.fact(neginf=4, shape=(8, 4)), by_hand.fact(neginf=1, shape=(8, 1)))
    line = on(f"h = {expression}", expression)
    assert mechanism(at("sub", given, (by_hand.fact(nan=4),), **line)).slug == slug


@pytest.mark.parametrize(
    ("expression", "shape", "slug"),
    [
        ("logq - logp", (3,), "domain_error"),
        ("scores - scores.max(0).values", (3,), "attention_fully_masked"),
        ("scores - top", (), "attention_fully_masked"),
        ("logq - logp", (1, 3), "attention_fully_masked"),
    ],
)
def test_a_table_that_is_laid_along_the_rows_is_no_maximum_of_one(at, by_hand, expression, shape, slug):
    given = (by_hand.fact(neginf=18, shape=(6, 3)), by_hand.fact(neginf=1, shape=shape))
    line = on(f"h = {expression}", expression)
    assert mechanism(at("sub", given, (by_hand.fact(nan=6),), **line)).slug == slug


def test_a_difference_of_a_row_and_a_table_is_no_softmax_in_blocks(at, by_hand):
    given = (by_hand.fact(neginf=1, shape=(8, 1)), by_hand.fact(neginf=4, shape=(8, 4)))
    line = on("h = torch.exp(logvar1 - logvar2)", "logvar1 - logvar2")
    assert mechanism(at("sub", given, (by_hand.fact(nan=4),), **line)).slug == "domain_error"


@pytest.mark.parametrize(("of_weights", "first"), [(False, "e = (r * r).float().sum(-1)"), (True, "torch.autocast(")])
def test_half_precision_that_autocast_did_not_make_is_left_by_a_cast(at, by_hand, of_weights, first):
    given = (by_hand.fact(dtype="float16", max=16000.0, min=0.0, absmax=16000.0),)
    out = (by_hand.fact(dtype="float16", posinf=8),)
    extra = {"float64_finite": True, "float64_absmax": 294403.0, "autocast": True, "of_weights": of_weights}
    found = mechanism(at("sum", given, out, extra=extra, **on("e = (r * r).sum(-1)", "(r * r).sum(-1)")))
    assert (found.slug, found.suggestions[0].code.startswith(first)) == ("overflow", True), found.suggestions


@pytest.mark.parametrize(
    ("expression", "code"),
    [("x.square()", "e = x.float().square().mean()"), ("(x ** 2)", "e = (x.float() ** 2).mean()")],
)
def test_a_square_of_half_precision_that_the_script_made_is_one_too(at, by_hand, expression, code):
    given = (by_hand.fact(dtype="float16", max=600.0, min=1.0, absmax=600.0),)
    extra = {"float64_finite": True, "float64_absmax": 360000.0, "autocast": True, "of_weights": False}
    line = on(f"e = {expression}.mean()", expression)
    assert codes(at("pow", given, (by_hand.fact(dtype="float16", posinf=8),), extra=extra, **line))[0] == code


@pytest.mark.parametrize("expression", ["torch.exp(sim)", "sim.exp()"])
def test_an_exponential_in_float32_is_told_by_the_scripts_own_name(at, by_hand, expression):
    given = (by_hand.fact(dtype="float16", max=14.3, min=-1.7, absmax=14.3),)
    extra = {"float64_finite": True, "float64_absmax": 1.6e6, "autocast": True}
    facts = at("exp", given, (by_hand.fact(dtype="float16", posinf=8),), extra=extra,
               **on(f"e = {expression}", expression))  # fmt: skip
    (lifted,) = [one.code for one in mechanism(facts).suggestions if "in float32" in one.text]
    assert lifted == f"e = {expression.replace('sim', 'sim.float()')}"


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


def test_a_mask_beyond_half_precision_is_given_the_least_number_of_it(at, by_hand):
    line = on("s = s + padding.to(s.dtype) * -1e9", "padding.to(s.dtype) * -1e9")
    given = (by_hand.fact(dtype="float16", zeros=10, min=0.0, max=1.0, absmax=1.0),)
    out = (by_hand.fact(dtype="float16", neginf=6, min=0.0, max=0.0, absmax=0.0),)
    extra = {"arg1": -1e9, "float64_finite": True, "float64_absmax": 1e9}
    found = mechanism(at("mul", given, out, extra=extra, **line))
    assert found.slug == "overflow"
    assert found.suggestions[0].code == "s = s + padding.to(s.dtype) * torch.finfo(torch.float16).min"
    assert "masked all over" in found.suggestions[0].text


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


@pytest.mark.parametrize(
    ("op", "shown", "name"),
    [
        ("sub", "r - self.lo", "self.lo"),
        ("rsub", "lo - r", "lo"),
        ("sub", "r - self.lo[0]", None),
        ("add", "r + lo", None),
    ],
)
def test_a_number_of_the_script_s_that_is_infinite_is_told_by_its_name_and_where_it_is_set(
    at, by_hand, op, shown, name
):
    facts = at(
        op, (by_hand.fact(),), (by_hand.fact(neginf=16),), extra={"arg1": "inf"}, **at_line(f"s = {shown}", shown)
    )
    found = explain(told.on(facts, written=[(name or "r", (11, 14))]))[1]
    if name is None:
        assert found.evidence == (f"a number that {op} was given is +inf",)
    else:
        assert found.evidence == (f"{name}, which {op} was given, is +inf",)
        assert f"{name} is +inf: look at where it is set, lines 11 and 14." in found.suggestions[0].text


@pytest.mark.parametrize(("size", "code"), [(6, "save({k: v.float()})"), (1 << 22, "save({k: v.bfloat16()})")])
def test_a_small_tensor_that_float16_does_not_hold_is_kept_in_float32(at, by_hand, size, code):
    given = by_hand.fact(shape=(size,), max=115905.0, absmax=115905.0)
    out = by_hand.fact(dtype="float16", shape=(size,), posinf=6)
    extra = {"float64_finite": True, "float64_absmax": 115905.0}
    facts = at("_to_copy", (given,), (out,), extra=extra, **on("save({k: v.half()})", "v.half()"))
    assert codes(facts)[0] == code


def test_what_is_brought_back_to_float32_behind_the_cast_is_so_once(at, by_hand):
    given = by_hand.fact(shape=(6,), max=115905.0, absmax=115905.0)
    out = by_hand.fact(dtype="float16", shape=(6,), posinf=6)
    extra = {"float64_finite": True, "float64_absmax": 115905.0}
    facts = at("_to_copy", (given,), (out,), extra=extra, **on("s[k] = s[k].half().float()", "s[k].half()"))
    assert codes(facts)[0] == "s[k] = s[k].float()"
