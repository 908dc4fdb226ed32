"""Learning rates that differ from rank to rank are told where one of them was too high."""

import pytest

from nandiag.analysis.verdict.rates import rates_of, uneven
from nandiag.events import History


def history(*rates, optimizer=None):
    steps = tuple(range(len(rates)))
    return History(step=steps, loss=(1.0,) * len(rates), grad_norm=(1.0,) * len(rates), lr=rates,
                   scale=(None,) * len(rates), activation=(None,) * len(rates),
                   optimizer=optimizer or (0,) * len(rates))  # fmt: skip


def test_the_rate_of_each_rank_at_the_step_is_taken():
    known = {0: history(0.1, 0.01, 7.0), 1: history(1.0), 2: None, 3: history(1.0, 2.0, optimizer=(0, 1))}
    assert rates_of(known, 1) == {0: 0.01, 1: 1.0}


@pytest.mark.parametrize(
    ("rates", "slug", "told"),
    [
        ({0: 0.01, 1: 1.0, 2: 0.01}, "lr_divergence", True),
        ({0: 1.0, 1: 1.0}, "lr_divergence", False),
        ({0: 0.01, 1: 1.0}, "division_by_zero", False),
    ],
)
def test_rates_that_differ_are_told_of_a_divergence(rates, slug, told):
    said = uneven(rates, slug)
    assert said == (("The ranks do not train alike: the learning rate is 1 on rank 1, 0.01 on ranks 0, 2.",) * told)
