"""A decay by distance whose exponent goes both ways: the mask behind it comes too late, and no batch is to blame."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, History, Meaning, Site
from tests.unit.analysis.mends.told import placed

POWER = "gamma[:, None, None] ** diff"


def decay(
    at, by_hand, line=f"return {POWER} * causal", expression=POWER, base=(0.5, 0.94), ends=(-191.0, 191.0), **rest
):
    given = by_hand.fact(min=ends[0], max=ends[1], absmax=max(map(abs, ends)), zeros=4)
    bases = (by_hand.fact(min=base[0], max=base[1], absmax=base[1]),) if isinstance(base, tuple) else ()
    extra = {"of_weights": False, "float64_finite": True, "float64_absmax": 3e57, "dtype": "float32"}
    extra |= {} if bases else {"arg0": base}
    calm = History(tuple(range(6)), (1.0,) * 6, (1.0,) * 6, (), (0.1,) * 6)
    return at("pow", (*bases, given), (by_hand.fact(posinf=9),), history=calm, step=6,
              **{**placed(line, expression), "phase": "forward"}, extra={**extra, **rest})  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expression", "base", "code"),
    [
        (f"return {POWER} * causal", POWER, (0.5, 0.94), "return gamma[:, None, None] ** diff.clamp(min=0) * causal"),
        ("D = 0.9 ** (i - j)", "0.9 ** (i - j)", 0.9, "D = 0.9 ** (i - j).clamp(min=0)"),
        ("D = torch.pow(g, d).tril()", "torch.pow(g, d)", (0.9, 0.9), "D = torch.pow(g, d.clamp(min=0)).tril()"),
        ("D = 2.0 ** d * upper", "2.0 ** d", 2.0, "D = 2.0 ** d.clamp(max=0) * upper"),
    ],
)
def test_the_exponent_is_bounded_where_the_power_grows(at, by_hand, line, expression, base, code):
    story, mechanism = explain(decay(at, by_hand, line, expression, base))
    assert (story, mechanism.slug) == (None, "overflow")
    assert [one.code for one in mechanism.suggestions] == [code]
    assert ("comes too late" in mechanism.suggestions[0].text) is (" * " in line)
    assert not any("No gradient goes back" in text for text in mechanism.evidence)


def test_a_power_that_leaves_float64_too_is_an_overflow(at, by_hand):
    facts = decay(at, by_hand, ends=(-2047.0, 2047.0), float64_finite=False, float64_absmax="inf")
    assert explain(facts)[1].slug == "overflow"


@pytest.mark.parametrize(("base", "ends"), [((0.5, 1.5), (-191.0, 191.0)), ((0.5, 0.9), (-300.0, -1.0))])
def test_another_power_is_told_as_before(at, by_hand, base, ends):
    assert all(
        "clamp(m" not in (one.code or "") for one in explain(decay(at, by_hand, base=base, ends=ends))[1].suggestions
    )


ARANGE = "torch.arange(x.size(1), dtype=torch.float32)[None, :, None]"


def positions(facts, names, shape=(1, 176, 1)):
    given = replace(facts.origin.inputs[-1], min=-175.0, max=0.0, absmax=175.0, zeros=1, absmin=1.0, numel=176)
    kinds = tuple(Meaning(name, text, "train.py", 3) for name, text in names.items())
    look = replace(facts.look, site=Site(around=Around(kinds=kinds)))
    return replace(facts, origin=replace(facts.origin, inputs=(replace(given, shape=shape),)), look=look)


@pytest.mark.parametrize(
    ("line", "expression", "names", "shape"),
    [
        ("k = self.k(x) * self.gamma ** -n", "self.gamma ** -n", {"n": ARANGE}, (4, 44)),
        ("k = self.k(x) * self.gamma ** -n", "self.gamma ** -n", {}, (1, 176, 1)),  # a run of whole numbers
        ("k = torch.pow(0.6, -n.float())", "torch.pow(0.6, -n.float())", {"n": ARANGE}, (4, 44)),
        ("k = 0.6 ** -torch.arange(t).view(-1, 1)", "0.6 ** -torch.arange(t).view(-1, 1)", {}, (4, 44)),
        ("k = 0.6 ** (2 * -n)", "0.6 ** (2 * -n)", {"n": ARANGE}, (4, 44)),
    ],
)
def test_where_positions_alone_are_raised_to_the_length_is_told_and_no_batch(
    at, by_hand, line, expression, names, shape
):
    story, mechanism = explain(positions(decay(at, by_hand, line, expression, 0.6), names, shape))
    assert (story, mechanism.slug) == (None, "overflow")
    assert "grows with the length alone" in mechanism.suggestions[0].text
    assert "** (n - m)" in mechanism.suggestions[0].text
    assert not any("batch" in text for text in mechanism.evidence)


@pytest.mark.parametrize(
    ("line", "names"),
    [("k = 0.6 ** -n", {"n": "x.abs()"}), ("k = 0.6 ** -(n * x)", {"n": ARANGE}), ("k = 0.6 ** -y", {})],
)
def test_what_values_of_the_batch_may_go_into_is_told_as_before(at, by_hand, line, names):
    _, mechanism = explain(positions(decay(at, by_hand, line, line[4:], 0.6), names, (4, 44)))
    assert not any("length alone" in one.text for one in mechanism.suggestions)
