"""A decay by distance whose exponent goes both ways: the mask behind it comes too late, and no batch is to blame."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import History
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
