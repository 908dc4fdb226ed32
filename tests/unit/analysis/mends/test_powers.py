"""Divisions by a power of a single number that is 0: what counts begins at 1, what is a variance does not."""

import pytest

from tests.unit.analysis.mends.told import advice, on, placed


@pytest.mark.parametrize("phase", ["loss", "optimizer"])
@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("sigma = (eta / t**p).sqrt()", "eta / t**p", "sigma = (eta / (t + 1)**p).sqrt()"),
        ("rate = base / self.steps.sqrt()", "base / self.steps.sqrt()", "rate = base / (self.steps + 1).sqrt()"),
    ],
)
def test_a_power_of_one_number_counts_from_1_on(at, by_hand, phase, line, expression, code):
    given, out = (by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0),), (by_hand.fact(shape=(), posinf=1),)
    told = advice(at("reciprocal", given, out, **{**placed(line, expression), "phase": phase}))[0]
    assert told.code == code
    assert "from 1 on" in told.text


def test_a_variance_does_not_count(at, by_hand):
    given, out = (by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0),), (by_hand.fact(shape=(), posinf=1),)
    told = advice(at("reciprocal", given, out, **placed("y = a / v.sqrt()", "a / v.sqrt()")))
    assert not any("from 1 on" in one.text for one in told)


@pytest.mark.parametrize(
    ("made", "floor"),
    [
        ("len(p) * p[i]", True),
        ("p / p.sum()", True),
        ("adj.sum(1)", False),
        ("a.sum(1) / len(a)", False),
        ("torch.bincount(i) * scale", False),
        ("deg / 12", False),
        (None, False),
    ],
)
def test_a_share_of_zero_has_a_floor_and_a_count_of_nothing_gives_nothing(at, by_hand, made, floor):
    """What is drawn seldom weighs much: 0 would be the least weight of all."""
    given = by_hand.fact(shape=(32,), zeros=1, min=0.0, absmin=0.33)
    facts = at(
        "pow",
        (given,),
        (by_hand.fact(shape=(32,), posinf=1),),
        extra={"arg1": -0.4},
        **placed("w = b ** -beta", "b ** -beta"),
    )
    told = [one.code for one in advice(on(facts, ("deg", "adj.sum(1)"), *([] if made is None else [("b", made)])))]
    zero = "w = torch.where(b > 0, b, torch.inf) ** -beta"
    assert told == (["w = b.clamp_min(0.03) ** -beta", zero] if floor else [zero, "w = b.clamp_min(1e-6) ** -beta"])


@pytest.mark.parametrize(
    ("below", "names", "code"),
    [
        ("self.keep.sum()", (), "scale = alpha / self.keep.sum().clamp_min(1)"),
        ("total", (("total", "torch.sum(m)"), ("m", "x > 0")), "scale = alpha / total.clamp_min(1)"),
        ("self.w.sum()", (), None),
    ],
)
def test_the_sum_of_a_mask_that_is_0_is_a_count(at, by_hand, below, names, code):
    line = f"scale = alpha / {below}"
    given = (by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0),)
    facts = at("reciprocal", given, (by_hand.fact(posinf=1, shape=()),), **placed(line, line.removeprefix("scale = ")))
    told = advice(on(facts, *names))
    assert told[0].code == code
    assert told[0].text.startswith("If ") is (code is not None)
