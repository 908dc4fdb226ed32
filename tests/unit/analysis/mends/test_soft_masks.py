"""A sum counts only where it is known to be one of whole numbers: a gate that is called a mask is below 1 all along."""

import pytest

from tests.unit.analysis.mends.told import advice, on, placed


def divided(at, by_hand, below, *names, kind="nan", dtype="float32"):
    line = f"loss = (each * m).sum() / {below}"
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0, absmin=None, dtype=dtype)
    above = zero if kind == "nan" else by_hand.fact(shape=())
    facts = at("div", (above, zero), (by_hand.fact(shape=(), **{kind: 1}),), **placed(line, line[7:]))
    return [one.code for one in advice(on(facts, *names))]


@pytest.mark.parametrize(
    "made",
    [
        "self.gate(x).squeeze(-1)",
        "relevance(x)",
        "torch.sigmoid(z)",
        "torch.relu(self.gate(x))",
        "(x > 0) * w",
        "(x > 0) / 4",
        "(x > 0) * 0.5",
        "batch['mask']",
        None,
    ],
)
@pytest.mark.parametrize("name", ["mask", "valid", "self.keep"])
def test_what_is_called_a_mask_may_be_soft(at, by_hand, made, name):
    known = () if made is None else ((name, made),)
    assert f"loss = (each * m).sum() / {name}.sum().clamp_min(1e-6)" in divided(at, by_hand, f"{name}.sum()", *known)


@pytest.mark.parametrize(
    "made",
    [
        "y != -100",
        "(y != -100).float()",
        "~torch.isnan(y)",
        "y.ne(0).to(x.dtype)",
        "(a > 0) & live",
        "torch.arange(8) < n",
        "x.bool()",
        "x.to(torch.int64)",
        "torch.where(y > 0, 1.0, 0.0)",
        "(y > 0).float() * x.isfinite()",
        "1 - pad",
        "torch.bernoulli(p)",
    ],
)
def test_what_is_made_of_0_and_1_counts(at, by_hand, made):
    names = (("mask", made), ("pad", "(x == 0).float()"))
    assert "loss = (each * m).sum() / mask.sum().clamp_min(1)" in divided(at, by_hand, "mask.sum()", *names)


def test_a_sum_in_whole_numbers_counts(at, by_hand):
    assert divided(at, by_hand, "mask.sum()", dtype="int64") == ["loss = (each * m).sum() / mask.sum().clamp_min(1)"]


@pytest.mark.parametrize(("made", "counts"), [("gate.sum()", False), ("hot.sum()", True), ("w.sum()", True)])
def test_a_count_of_fractions_is_no_count(at, by_hand, made, counts):
    names = (("count", made), ("gate", "torch.sigmoid(z)"), ("hot", "x > 0"))
    told = divided(at, by_hand, "count", *names)
    assert f"loss = (each * m).sum() / count.clamp_min({'1' if counts else '1e-6'})" in told


def test_what_is_infinite_by_a_gate_is_not_bounded_at_1(at, by_hand):
    told = divided(at, by_hand, "mask.sum()", ("mask", "torch.sigmoid(z)"), kind="posinf")
    assert not any("clamp_min(1)" in (code or "") for code in told)
