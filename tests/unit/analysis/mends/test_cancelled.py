"""Of a difference of squares that is rounding alone the line is mended that takes it, not what broke by it."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site
from nandiag.events.forms import plain

LINE = "return (x - mean) / std"


def broken(at, by_hand, text, shown, *names, of=4.06e6, dtype="float32", lost=True, kind="posinf"):
    """The facts on a division by the 0 that came of the difference ``shown`` in the line ``text``."""
    first = text.index(shown)
    around = Around(tuple(Meaning(name, meaning, "train.py", 8) for name, meaning in names))
    site = Site(op="aten.sub.Tensor", file="train.py", line=9, column=(first, first + len(shown)), source=text,
                around=around)  # fmt: skip
    told = {"how": "cancelled", "dtype": dtype, "of": of, "site": plain(site)}
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, shape=(4,)))
    return at("div", given, (by_hand.fact(**{kind: 4}),), text=LINE, column=(7, len(LINE)), file="train.py", line=10,
              extra={"lost": told if lost else {}})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown", "names", "code"),
    [
        ("v = (x * x).mean(0) - m * m", "(x * x).mean(0) - m * m", [("m", "x.mean(0)")],
         "v = x.var(0, unbiased=False) + 1e-8"),
        ("s = (x.pow(2).mean() - x.mean() ** 2 + eps).sqrt()", "x.pow(2).mean() - x.mean() ** 2", [],
         "s = (x.var(unbiased=False) + eps).sqrt()"),
        ("std = (self.b / self.n - mean**2).sqrt()", "self.b / self.n - mean**2", [("mean", "self.a / self.n")],
         "std = (self.b / self.n - mean**2).clamp_min(1e-6 * mean**2 + 1e-12).sqrt()"),
        ("std = torch.sqrt(sq - m * m)", "sq - m * m", [],
         "std = torch.sqrt((sq - m * m).clamp_min(1e-6 * m * m + 1e-12))"),
        ("v = e2 - m.square()", "e2 - m.square()", [], "v = (e2 - m.square()).clamp_min(1e-6 * m.square() + 1e-12)"),
        ("h = torch.sqrt(c**2 - a**2)", "c**2 - a**2", [], "h = torch.sqrt(((c - a) * (c + a)).clamp_min(1e-12))"),
    ],
)  # fmt: skip
def test_the_line_that_takes_the_difference_is_mended(at, by_hand, text, shown, names, code):
    mechanism = explain(broken(at, by_hand, text, shown, *names))[1]
    assert mechanism.slug == "division_by_zero"
    assert mechanism.suggestions[0].code == f"{code}  # line 9"
    assert mechanism.suggestions[0].text.endswith(" What is shown is to replace line 9.")
    told = " ".join(mechanism.evidence)
    assert "line 9" in told
    assert "4.06e6" in told
    assert "knows only steps of 0.25;" in told
    assert "torch.where" not in str(mechanism.suggestions)


def test_the_line_that_broke_is_mended_without_its_number(at, by_hand):
    text = "s = (x.pow(2).mean(0) - x.mean(0) ** 2).sqrt()"
    facts = broken(at, by_hand, text, "x.pow(2).mean(0) - x.mean(0) ** 2")
    facts.look.facts["lost"]["site"]["line"] = 10
    assert explain(facts)[1].suggestions[0].code == "s = (x.var(0, unbiased=False) + 1e-8).sqrt()"


def test_running_moments_are_told_to_be_taken_about_the_mean(at, by_hand):
    facts = broken(at, by_hand, "v = self.b / self.n - m**2", "self.b / self.n - m**2", ("m", "self.a / self.n"))
    assert "Welford" in explain(facts)[1].suggestions[1].text
    facts = broken(at, by_hand, "v = sq - m**2", "sq - m**2")
    assert "two passes" in explain(facts)[1].suggestions[1].text


@pytest.mark.parametrize("rows", [True, False])
def test_the_spread_of_groups_is_taken_over_these_and_bounded_where_a_group_is_of_one(at, by_hand, rows):
    """A mean over all would be another number, and of one value the root is 0 however its square is made."""
    text = "var = scatter_mean(x * x, index, n) - mean * mean"
    lost = broken(at, by_hand, text, text[6:], ("mean", "scatter_mean(x, index, n)"), of=0.17).look.facts["lost"]
    given = (by_hand.fact(shape=(6, 12)), by_hand.fact(zeros=12 if rows else 5, min=0.0, shape=(6, 12)))
    bad = by_hand.fact(posinf=4, neginf=8, shape=(6, 12), first_bad=(4, 0))
    line = "return torch.sqrt(var.clamp(min=0))"
    facts = at("div", given, (bad,), text=line, column=(7, len(line)), file="train.py", line=10,
               node="SqrtBackward0", forward_op="aten.sqrt.default", extra={"lost": lost})  # fmt: skip
    found = explain(facts)[1]
    assert found.suggestions[1].code is None
    assert "over the same part that scatter_mean averages" in found.suggestions[1].text
    assert "Keep the bound" in found.suggestions[1].text
    assert any("of one alone" in text for text in found.evidence) is rows


def test_equal_numbers_have_lost_nothing(at, by_hand):
    facts = broken(at, by_hand, "v = sq - m * m", "sq - m * m", kind="nan")
    assert len(explain(facts)[1].evidence) == 1


def test_half_precision_has_a_bound_of_its_own_size(at, by_hand):
    facts = broken(at, by_hand, "v = sq - m**2", "sq - m**2", dtype="bfloat16", of=4.0)
    assert "clamp_min(0.1 * m**2 + 1e-12)" in explain(facts)[1].suggestions[0].code


@pytest.mark.parametrize("shown", ["1 - c**2", "a - b", "sub(a, b)"])
def test_what_is_no_difference_of_squares_by_the_text_keeps_its_own_help(at, by_hand, shown):
    mechanism = explain(broken(at, by_hand, f"v = {shown}", shown))[1]
    assert "torch.where(std != 0" in mechanism.suggestions[0].code
    assert len(mechanism.evidence) == 1


def test_a_difference_that_is_more_than_rounding_is_not_told_to_be_rounding(at, by_hand):
    text = "std = torch.sqrt(sq - mean * mean + self.eps)"
    facts = at("sqrt", (by_hand.fact(min=-0.045),), (by_hand.fact(nan=2),), text=text, column=(6, len(text)),
               file="train.py", line=9, extra={"lost": {}})  # fmt: skip
    suggestions = explain(facts)[1].suggestions
    assert not any("loses its digits" in one.text for one in suggestions)
    assert not any("rounding" in one.text for one in suggestions)
    assert suggestions[0].code == "std = torch.sqrt((sq - mean * mean).clamp_min(0) + self.eps)"
