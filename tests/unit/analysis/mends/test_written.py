"""A script's expression in the code of a help means what it means in the script, whatever stands beside it."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.mends.script import parsing
from tests.unit.analysis.mends.placing import first, on
from tests.unit.analysis.mends.test_states import replace, told_of_factor
from tests.unit.analysis.mends.told import quotient


@pytest.mark.parametrize(
    ("form", "part", "code"),
    [
        ("assert 0 <= {} <= 1", "1.9 if self.training else 1.0", "assert 0 <= (1.9 if self.training else 1.0) <= 1"),
        ("assert 0 <= {} <= 1", "1 + tau", "assert 0 <= 1 + tau <= 1"),
        ("assert 0 <= {} <= 1", "a < b", "assert 0 <= (a < b) <= 1"),
        ("assert 0 <= {} <= 1", "a or b", "assert 0 <= (a or b) <= 1"),
        ("assert 0 <= {} <= 1", "not a", "assert 0 <= (not a) <= 1"),
        ("assert 0 <= {} <= 1", "a & b", "assert 0 <= a & b <= 1"),
        ("{} - top", "a - b", "a - b - top"),
        ("top - {}", "a - b", "top - (a - b)"),
        ("x = {}.log()", "-y", "x = (-y).log()"),
        ("x = {}.log()", "y[0]", "x = y[0].log()"),
        ("x = f({})", "lambda y: y", "x = f(lambda y: y)"),
        ("x = {} * 2", "lambda y: y", "x = (lambda y: y) * 2"),
        ("x = {} ** 2", "y ** 3", "x = (y ** 3) ** 2"),
        ("x = [{}, 1]", "a, b", "x = [(a, b), 1]"),
        ("x = {} > 0", "y := 3", "x = (y := 3) > 0"),
        ("{} is no code", "a or b", "a or b is no code"),
    ],
)
def test_it_has_brackets_where_it_would_be_read_otherwise(form, part, code):
    assert parsing.written(form, part) == code


def test_each_of_several_is_looked_at_by_itself():
    code = parsing.written("({} + 1e-12) / ({} + 1e-12)", "a if c else b", "d * e")
    assert code == "((a if c else b) + 1e-12) / (d * e + 1e-12)"


def test_a_condition_that_makes_a_factor_is_checked_as_a_whole(at, by_hand):
    line = "self.bank.mul_(1.9 if self.training else 1.0).add_(w)"
    facts = told_of_factor(at, by_hand, line, line.removesuffix(".add_(w)"), "mul_")
    assert explain(facts)[1].suggestions[0].code == "assert 0 <= (1.9 if self.training else 1.0) <= 1"


def test_a_condition_that_makes_targets_is_compared_as_a_whole(at, by_hand):
    call = "F.cross_entropy(z, a if c else b, ignore_index=0)"
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(f"return {call}", call))
    code = f'return {call[:-1]}, reduction="sum") / ((a if c else b) != 0).sum().clamp_min(1)'
    assert first(facts) == code


def test_a_condition_in_an_exponential_is_subtracted_from_as_a_whole(at, by_hand):
    line = "s = torch.exp(a if c else b).sum()"
    big = by_hand.fact(max=130.0, absmax=130.0)
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), **on(line, "torch.exp(a if c else b)"))
    codes = [one.code or "" for one in explain(facts)[1].suggestions]
    assert not any("else b -" in code for code in codes), codes


def test_a_condition_in_a_ratio_is_kept_as_a_whole(at, by_hand):
    facts = at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),), extra={"of_weights": False},
               **on("y = torch.log((a if c else b) / d)", "torch.log((a if c else b) / d)"))  # fmt: skip
    codes = [one.code or "" for one in explain(facts)[1].suggestions]
    assert "y = torch.log(((a if c else b) + 1e-12) / (d + 1e-12))" in codes


def test_a_condition_that_divides_gets_its_eps_behind_it(at, by_hand):
    facts = replace(quotient(at, by_hand, "y = a / (b.sqrt() if c else d)", "a / (b.sqrt() if c else d)", "nan"))
    codes = [one.code or "" for one in explain(facts)[1].suggestions]
    assert not any("else d +" in code for code in codes), codes
