"""A bias correction below zero: its count is the cause, and no bound on what it corrected is a mend."""

import pytest
import torch

from tests.unit.analysis.mends.told import advice, on, placed


def below(at, by_hand, line, expression, *names):
    given = by_hand.fact(min=-4e-5, max=-2e-11, absmax=4e-5)
    facts = at("sqrt", (given,), (by_hand.fact(nan=16),), **{**placed(line, expression), "phase": "optimizer"})
    return advice(on(facts, *names))


AGE = ("age", "self.t - s['t']")


@pytest.mark.parametrize(
    ("line", "expression", "names"),
    [
        ("p.sub_(lr * m / (v_hat.sqrt() + eps))", "v_hat.sqrt()", [("v_hat", "v / (1 - torch.tensor(b2) ** age)")]),
        ("d = torch.sqrt(v / (1 - b2 ** age)) + eps", "torch.sqrt(v / (1 - b2 ** age))", []),
        ("d = torch.sqrt(v / fix)", "torch.sqrt(v / fix)", [("fix", "1 - torch.tensor(b2) ** torch.tensor(age)")]),
        ("d = (1 - b2 ** age).sqrt()", "(1 - b2 ** age).sqrt()", []),
    ],
)
def test_a_correction_below_zero_is_told_by_its_count(at, by_hand, line, expression, names):
    (told,) = below(at, by_hand, line, expression, *names, AGE)
    assert "which is below 0: so it is where age is, or b2 is above 1" in told.text
    assert "where it is self.t - s['t']" in told.text
    for age, fails in ((-9, True), (1, False)):
        assert (1 - torch.tensor(0.999) ** age < 0) == fails
        if fails:
            with pytest.raises(AssertionError):
                exec(told.code, {"age": age})  # noqa: S102
        else:
            exec(told.code, {"age": age})  # noqa: S102


def test_what_is_above_zero_elsewhere_was_divided_by_no_such_correction(at, by_hand):
    given = by_hand.fact(min=-4e-5, max=1.0, absmax=1.0)
    facts = at("sqrt", (given,), (by_hand.fact(nan=1),), **placed("d = torch.sqrt(v / (1 - b2 ** t))",
               "torch.sqrt(v / (1 - b2 ** t))"))  # fmt: skip
    assert "clamp_min" in advice(on(facts))[0].code
