"""Learning rates that differ from rank to rank are told where one of them was too high."""

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.verdict.rates import rates_of, uneven
from nandiag.events import History, Site


def history(*rates, optimizer=None, norms=None, losses=None):
    steps = tuple(range(len(rates)))
    norms, losses = norms or (1.0,) * len(rates), losses or (1.0,) * len(rates)
    return History(step=steps, loss=losses, grad_norm=norms, lr=rates,
                   scale=(None,) * len(rates), activation=(None,) * len(rates),
                   optimizer=optimizer or (0,) * len(rates))  # fmt: skip


def test_the_rates_of_all_ranks_are_those_of_one_and_the_same_step():
    known = {0: history(0.1, 0.01, 7.0), 1: history(1.0), 2: None, 3: history(1.0, 2.0, optimizer=(0, 1))}
    assert rates_of(known, 1) == ({0: 0.1, 1: 1.0}, True)
    assert rates_of({0: history(0.1, 0.2, 0.4), 1: history(0.1, 0.2)}, 2) == ({0: 0.2, 1: 0.2}, True)
    assert rates_of({0: history(0.1, norms=(2.0,)), 1: history(0.1)}, 2) == ({0: 0.1, 1: 0.1}, False)
    assert rates_of({0: None}, 2) == ({}, False)


CALM_FIRST, FROM_THE_START = (1.0, 1.0, 1.0, 40.0, 1e4, 1e13), (1.0, 40.0, 1e3, 4e4, 1e6, 4e7)


def ran_away(by_hand, *, shared, low=0.01, grown=CALM_FIRST):
    """Two ranks whose losses ran away: by the rate of rank 1, where they share their gradients."""
    site = Site("net", "Net", "aten.pow.Tensor_Scalar", file="t.py", line=3)
    of_rank = (
        history(*(low,) * 6, norms=grown, losses=(1.0, 1.0, 1.0, 1.0, 60.0, 1e9)),
        history(*(0.9,) * 6, norms=grown if shared else (*grown[:5], 1e12), losses=(1.0, *grown[1:])),
    )
    big = by_hand.fact(max=1e21, absmax=1e21)
    found = {"phase": "loss", "site": site, "inputs": (big,), "outputs": (by_hand.fact(posinf=2),)}
    events = [(of, by_hand.loss(6, value=float("inf"), optimizer="SGD"), by_hand.found(6, **found)) for of in of_rank]
    return analyse(by_hand.run(*(by_hand.rank(number, *one) for number, one in enumerate(events)))).verdict


def test_of_ranks_that_share_their_gradients_the_one_with_the_highest_rate_is_told(by_hand):
    verdict = ran_away(by_hand, shared=True)
    assert (verdict.cause, verdict.origin.ranks) == ("lr_divergence", (1,))
    first = verdict.suggestions[0]
    assert first.text.startswith("Give all ranks the same learning rate: look at what sets it on rank 1.")
    assert first.code == "SGD(..., lr=0.01)"
    assert ran_away(by_hand, shared=False).origin.ranks == (0, 1)


@pytest.mark.parametrize("low", [0.6, 0.06])
def test_a_rate_of_another_rank_that_is_too_high_as_well_is_none_to_try(by_hand, low):
    verdict = ran_away(by_hand, shared=True, low=low, grown=FROM_THE_START)
    assert verdict.cause == "lr_divergence"
    first = verdict.suggestions[0]
    assert first.text.startswith("Lower the learning rate;")
    assert f"{low}" not in first.text + (first.code or "")
    assert any(f"{low}, as on rank 0, is too high as well: above about 0.0" in one for one in verdict.evidence)
    assert any("the learning rate is 0.9 on rank 1" in one for one in verdict.evidence)


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
