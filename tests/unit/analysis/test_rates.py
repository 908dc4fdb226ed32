"""Learning rates that differ from rank to rank are told where one of them was too high."""

import math
from dataclasses import replace

import pytest
import torch

from nandiag.analysis import analyse
from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.steps import rates as scales
from nandiag.analysis.verdict.rates import rates_of, uneven
from nandiag.events import Compared, Harm, History, Setting, Site


def history(*rates, optimizer=None, norms=None, losses=None):
    steps = tuple(range(len(rates)))
    norms, losses = norms or (1.0,) * len(rates), losses or (1.0,) * len(rates)
    return History(step=steps, loss=losses, grad_norm=norms, lr=rates,
                   scale=(None,) * len(rates), activation=(None,) * len(rates),
                   optimizer=optimizer or (0,) * len(rates))  # fmt: skip


def test_the_rates_of_all_ranks_are_those_of_one_and_the_same_step():
    known = {
        0: history(0.1, 0.01, 7.0),
        1: history(1.0),
        2: None,
        3: replace(history(1.0, 2.0, optimizer=(0, 1)), step=(1, 1)),
    }
    assert rates_of(known, 1) == ({0: 0.1, 1: 1.0}, True)
    assert rates_of({0: history(0.1, 0.2, 0.4), 1: history(0.1, 0.2)}, 2) == ({0: 0.2, 1: 0.2}, True)
    assert rates_of({0: history(0.1, norms=(2.0,)), 1: history(0.1)}, 2) == ({0: 0.1, 1: 0.1}, False)
    assert rates_of({0: None}, 2) == ({}, False)


def of_two(*rates):
    """Two optimizers that take turns within each step."""
    known = history(*rates, optimizer=(0, 1) * (len(rates) // 2))
    return replace(known, step=tuple(at // 2 for at in range(len(rates))))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((0.02, 0.02, 0.02, 0.02), (2.0, 2.0, 2.0, 2.0), {0: 0.02, 1: 2.0}),
        ((0.1, 0.5, 0.1, 0.5), (0.1, 2.0, 0.1, 2.0), {0: 0.5, 1: 2.0}),
        ((0.1, 0.5, 0.1, 0.5), (0.5, 0.1, 0.5, 0.1), {0: 0.1, 1: 0.1}),  # numbered in another order
    ],
)
def test_of_several_optimizers_the_rate_that_not_all_ranks_have_is_compared(first, second, told):
    assert rates_of({0: of_two(*first), 1: of_two(*second)}, 1) == (told, False)


CALM_FIRST, FROM_THE_START = (1.0, 1.0, 1.0, 40.0, 1e4, 1e13), (1.0, 40.0, 1e3, 4e4, 1e6, 4e7)


def with_momentum(value):
    return Compared(6, settings=(Setting(0, "momentum", value, first=value, most=value),))


def ran_away(by_hand, *, shared, low=0.01, grown=CALM_FIRST, momentum=0.0):
    """Two ranks whose losses ran away: by the rate of rank 1, where they share their gradients."""
    site = Site("net", "Net", "aten.pow.Tensor_Scalar", file="t.py", line=3)
    of_rank = (
        history(*(low,) * 6, norms=grown, losses=(1.0, 1.0, 1.0, 1.0, 60.0, 1e9)),
        history(*(0.9,) * 6, norms=grown if shared else (*grown[:5], 1e12), losses=(1.0, *grown[1:])),
    )
    big = by_hand.fact(max=1e21, absmax=1e21)
    found = {"phase": "loss", "site": site, "inputs": (big,), "outputs": (by_hand.fact(posinf=2),)}
    known = () if momentum is None else (with_momentum(momentum),)
    events = [
        (of, by_hand.loss(6, value=float("inf"), optimizer="SGD"), by_hand.found(6, **found), *known) for of in of_rank
    ]
    return analyse(by_hand.run(*(by_hand.rank(number, *one) for number, one in enumerate(events)))).verdict


def test_of_ranks_that_share_their_gradients_the_one_with_the_highest_rate_is_told(by_hand):
    verdict = ran_away(by_hand, shared=True)
    assert (verdict.cause, verdict.origin.ranks) == ("lr_divergence", (1,))
    first = verdict.suggestions[0]
    assert first.text.startswith("Give all ranks the same learning rate: look at what sets it on rank 1.")
    assert first.code == "SGD(..., lr=0.01)"
    assert ran_away(by_hand, shared=False).origin.ranks == (0, 1)


def test_a_rank_that_ran_away_by_itself_at_the_highest_rate_is_to_have_that_of_the_others(by_hand):
    own = history(*(0.9,) * 6, norms=CALM_FIRST, losses=(1.0, 1.0, 1.0, 1.0, 60.0, 1e9))
    calm = by_hand.rank(0, history(*(0.01,) * 6), by_hand.finished(6, 0, 5))
    harmed = by_hand.rank(1, own, by_hand.loss(6, value=float("inf"), optimizer="SGD"), by_hand.finished(6, 0, 5))
    verdict = analyse(by_hand.run(calm, harmed)).verdict
    assert verdict.suggestions[0].text.startswith("Give all ranks the same learning rate: look at what sets it on rank")
    assert any("the learning rate is 0.9 on rank 1, 0.01 on rank 0" in one for one in verdict.evidence)


@pytest.mark.parametrize("low", [0.6, 0.06])
def test_a_rate_of_another_rank_that_is_too_high_as_well_is_none_to_try(by_hand, low):
    verdict = ran_away(by_hand, shared=True, low=low, grown=FROM_THE_START)
    assert verdict.cause == "lr_divergence"
    first = verdict.suggestions[0]
    assert first.text.startswith("Lower the learning rate;")
    assert f"{low}" not in first.text + (first.code or "")
    assert any(f"{low}, as on rank 0, is too high as well: above about 0.0" in one for one in verdict.evidence)
    assert any("the learning rate is 0.9 on rank 1" in one for one in verdict.evidence)


@pytest.mark.parametrize("momentum", [0.9, None])
def test_with_momentum_or_where_that_is_not_known_no_rate_is_said_to_be_too_high(by_hand, momentum):
    """Heavy ball goes down a bowl at nearly twice the rate of plain gradients."""
    verdict = ran_away(by_hand, shared=True, low=0.06, grown=FROM_THE_START, momentum=momentum)
    assert not any("is too high as well" in one for one in verdict.evidence)
    assert verdict.suggestions[0].code == "SGD(..., lr=0.06)"


def norms_of(rate, momentum, steps, curvature=1.0):
    """Return the gradient norms of torch's own SGD in a bowl."""
    weight, found = torch.nn.Parameter(torch.ones((), dtype=torch.float64)), []
    optimizer = torch.optim.SGD([weight], lr=rate, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        (curvature * weight**2 / 2).backward()
        found.append(abs(weight.grad.item()))
        optimizer.step()
    return found


@pytest.mark.parametrize(("momentum", "rate"), [(0.0, 2.5), (0.0, 6.8), (0.9, 5.0)])
def test_the_highest_rate_is_one_that_grows_right_above_and_not_below(momentum, rate):
    grown = norms_of(rate, momentum, 12)
    past = history(*(rate,) * 12, norms=grown, losses=[norm**2 / 2 for norm in grown])
    harm = Harm("loss", 12, "loss", (), 1, 1, optimizer="SGD")
    facts = Facts(None, "look", harm=harm, compared=with_momentum(momentum))
    most = scales.highest(facts, courses(past, 12)[0], rate)
    if momentum:
        assert most == math.inf
    else:
        assert norms_of(1.01 * most, momentum, 400)[-1] > 1.0 > norms_of(0.99 * most, momentum, 400)[-1]


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
    assert said == (("The ranks do not train alike: the learning rate is 1 on rank 1, 0.01 on ranks 0 and 2.",) * told)
