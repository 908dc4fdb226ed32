"""The logarithm of a ratio that holds zeros: what an exponential rounded to 0 has one, a count of 0 has none."""

import math

import pytest
import torch

from tests.unit.analysis.mends.told import advice, on, placed


def ratio(at, by_hand, line, shown, *names, absmin=0.1, uses=()):
    given = by_hand.fact(shape=(16,), zeros=10, min=0.0, max=3.0, absmax=3.0, absmin=absmin)
    bad = by_hand.fact(shape=(16,), neginf=10)
    facts = at("log", (given,), (bad,), extra={"of_weights": False}, **placed(line, shown))
    return advice(on(facts, *names, uses=uses))


@pytest.mark.parametrize(
    "line", ["adv = torch.log(p / base)", "adv = (p / base).log()", "adv = 2 * torch.log(p / base)"]
)
@pytest.mark.parametrize("absmin", [4e-44, 0.1])
def test_what_a_softmax_rounded_to_0_is_taken_in_one_step(at, by_hand, line, absmin):
    shown = line.partition("2 * ")[2] or line[6:]
    made = (("p", "torch.softmax(x @ W * scale, -1)[i, y]"), ("base", "torch.full((16,), 1 / 3)"))
    told = ratio(at, by_hand, line, shown, *made, absmin=absmin)
    assert not any(word in (one.code or "") for one in told for word in ("keep", "e-44", "e-1)"))
    x, w = torch.tensor([[1.0, 0.0]]), torch.eye(2)
    spaces = {"torch": torch, "x": x, "W": w, "i": torch.tensor([0]), "y": torch.tensor([1]), "scale": 200.0,
              "base": torch.full((1,), 1 / 3)}  # fmt: skip
    exec(told[0].code, spaces)  # noqa: S102
    wanted = (-200.0 + math.log(3.0)) * (2.0 if "2 *" in line else 1.0)
    assert abs(float(spaces["adv"]) - wanted) < 1e-3


@pytest.mark.parametrize(
    "made", [(("p", "torch.exp(self.score(x))"),), (("p", "q[i]"), ("q", "F.softmax(f(x), -1)")), ()]
)
def test_no_bound_is_next_to_0(at, by_hand, made):
    told = ratio(at, by_hand, "a = torch.log(p / base)", "torch.log(p / base)", *made, absmin=4e-44)
    assert not any("clamp_min(4e-44)" in (one.code or "") or "keep" in (one.code or "") for one in told)
    assert "has no logarithm" not in told[0].text


def test_samples_that_are_0_are_left_out_in_words(at, by_hand):
    told = ratio(at, by_hand, "t = torch.log(w / base)", "torch.log(w / base)")
    assert told[0].code is None
    assert "keep = (w > 0)" in told[0].text
    assert "target" not in told[0].text
    assert told[1].code == "t = torch.log((w / base).clamp_min(1e-1))"


@pytest.mark.parametrize(
    ("line", "made", "code"),
    [
        ("return (counts / counts.sum()).log()", (), "return ((counts + 1) / (counts + 1).sum()).log()"),
        ("h = torch.log(seen / seen.sum())", (("seen", "torch.bincount(y).float()"),),
         "h = torch.log((seen + 1) / (seen + 1).sum())"),
        ("h = torch.log(w / w.sum())", (), None),
        ("h = torch.log(count / count.sum())", (("count", "torch.rand(8) / 2"),), None),
    ],
)  # fmt: skip
def test_of_counts_one_more_of_each_is_taken(at, by_hand, line, made, code):
    told = ratio(at, by_hand, line, line.removeprefix("return ").removeprefix("h = "), *made)
    assert told[0].code == code
    assert ("add 1 to each" in told[0].text) is (code is not None)


def test_what_a_mask_of_minus_inf_took_out_has_no_logarithm_in_one_step_either(at, by_hand):
    made = (("p", "torch.softmax(z.masked_fill(pad, -torch.inf), -1)[i, y]"),)
    told = ratio(at, by_hand, "a = torch.log(p / base)", "torch.log(p / base)", *made)
    assert not any("log_softmax" in (one.code or "") for one in told)
