"""Quotients that are infinite, or would be: what stands in their line decides what is to be there."""

import pytest
import torch

from tests.unit.analysis.mends.told import advice, quotient


@pytest.mark.parametrize(
    ("inside", "weights", "code"),
    [
        ("1 / (1 - a[t]).sqrt()", False, "1 / torch.where((1 - a[t]) > 0, (1 - a[t]).sqrt(), torch.inf)"),
        ("x / torch.sqrt(v)", True, "x / torch.where(v > 1e-12, v.clamp_min(1e-12).sqrt(), torch.inf)"),
        ("x / net(v) ** 0.5", True,
         "under = net(v)\ny = f(x / torch.where(under > 1e-12, under.clamp_min(1e-12).sqrt(), torch.inf)) + 1"),
    ],
)  # fmt: skip
def test_no_quotient_by_a_root_is_a_million_in_the_place_of_an_infinite_one(at, by_hand, inside, weights, code):
    line = f"y = f({inside}) + 1"
    facts = quotient(at, by_hand, line, inside, "posinf", of_weights=weights)
    told = advice(facts)[0]
    assert told.code == (code if "\n" in code else f"y = f({code}) + 1")
    assert "give 0" in told.text


INVERTED = """divisor = torch.sum(w, -1)
d = 1.0 / torch.max(1e-10 * one, torch.where(divisor != 0, z / divisor.clamp_min(1e-6), torch.inf))"""


@pytest.mark.parametrize(
    ("line", "inside", "code"),
    [
        ("d = 1.0 / torch.max(1e-10 * one, z / torch.sum(w, -1))", "z / torch.sum(w, -1)",
         INVERTED),
        ("d = x / (z / w).clamp_min(1e-8)", "z / w",
         "d = x / (torch.where(w != 0, z / w.clamp_min(1e-6), torch.inf)).clamp_min(1e-8)"),
        ("d = x / (1 + z / w)", "z / w", "d = x / (1 + z / w.clamp_min(1e-6))"),
        ("d = x * torch.max(eps, z / w)", "z / w", "d = x * torch.max(eps, z / w.clamp_min(1e-6))"),
    ],
)  # fmt: skip
def test_a_quotient_that_divides_is_infinite_where_it_would_make_its_inverse_huge(at, by_hand, line, inside, code):
    assert advice(quotient(at, by_hand, line, inside, "nan"))[0].code == code


def test_behind_an_infinite_divisor_there_is_no_bad_gradient():
    w = torch.tensor([0.0, 2.0], requires_grad=True)
    z = torch.tensor([0.0, 3.0], requires_grad=True)
    d = 1.0 / torch.max(1e-10 * torch.ones(2), torch.where(w != 0, z / w.clamp_min(1e-6), torch.inf))
    d.square().sum().backward()
    assert d[0] == 0
    assert torch.isfinite(torch.stack([w.grad, z.grad])).all()
