"""Learning rates that differ from rank to rank, where one of them was too high (reader side)."""

from __future__ import annotations

from collections.abc import Mapping

from nandiag.events import History, words

_OF_RATE = frozenset({"lr_divergence", "gradient_explosion", "lr_invalid"})
_MOST = 4


def rates_of(histories: Mapping[int, History | None], step: int) -> dict[int, float]:
    """Return the learning rate of each rank at its newest step up to ``step``, of ranks with one optimizer."""
    rates = {}
    for rank, known in histories.items():
        rows = () if known is None or len(set(known.optimizer)) > 1 else zip(known.step, known.lr, strict=False)
        told = [rate for at, rate in rows if at <= step and rate is not None]
        if told:
            rates[rank] = told[-1]
    return rates


def uneven(rates: Mapping[int, float], slug: str | None) -> tuple[str, ...]:
    """Say that the ranks' learning rates differ, where the cause ``slug`` is about one."""
    if slug not in _OF_RATE or len(set(rates.values())) < 2:
        return ()
    groups: dict[float, list[int]] = {}
    for rank, rate in rates.items():
        groups.setdefault(rate, []).append(rank)
    told = [f"{words.number(rate)} on {words.ranks(ranks)}" for rate, ranks in sorted(groups.items(), reverse=True)]
    return (f"The ranks do not train alike: the learning rate is {words.few(told, most=_MOST)}.",)
