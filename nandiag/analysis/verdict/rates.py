"""Learning rates that differ from rank to rank, where one of them was too high (reader side)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Verdict
from nandiag.analysis.timeline import Timeline
from nandiag.events import History, words

_OF_RATE = frozenset({"lr_divergence", "gradient_explosion", "lr_invalid"})
_MOST = 4
_SAME = 1.001


def rates_of(histories: Mapping[int, History | None], step: int) -> tuple[dict[int, float], bool]:
    """Return each rank's learning rate at the newest step up to ``step`` that all have, and whether all trained alike.

    A rank without a rate, or with several optimizers, is left out; one that had ended before is compared by its last
    step. Alike are those whose gradients had the same norm there: what they train by is shared.
    """
    rows = {rank: found for rank, known in histories.items() if (found := _rows(known, step))}
    common = set.intersection(*(set(found) for found in rows.values())) if rows else set()
    if not common:
        return {}, False
    rates = {rank: found[max(common)][0] for rank, found in rows.items()}
    norms = [[found[at][1] for found in rows.values()] for at in sorted(common)]
    last = next((one for one in reversed(norms) if all(norm is not None and math.isfinite(norm) for norm in one)), [])
    known = [norm for norm in last if norm]
    return rates, len(known) > 1 and len(known) == len(rows) and max(known) <= min(known) * _SAME


def _rows(known: History | None, step: int) -> dict[int, tuple[float, float | None]]:
    if known is None or len(set(known.optimizer)) > 1:
        return {}
    rows = zip(known.step, known.lr, known.grad_norm, strict=False)
    return {at: (rate, norm) for at, rate, norm in rows if at <= step and rate is not None}


def narrowed(claim: Claim, timeline: Timeline, verdict: Verdict, ranks: Collection[int]) -> Claim:
    """Return the claim as one on ``ranks`` alone, of those that ran away by their learning rate, where a look tells."""
    mine = tuple(rank for rank in claim.ranks if rank in ranks)
    at = (claim.attempt, claim.step)
    if claim.look is None or verdict.cause != "lr_divergence" or not mine or mine == claim.ranks:
        return claim
    of = (one for one in timeline.looks if (one.attempt, one.event.step, one.rank) == (*at, mine[0]))
    look = next((one for one in of if one.event.outcome == "found"), None)
    harms = (one for one in timeline.harms if (one.attempt, one.event.step, one.rank) == (*at, mine[0]))
    return claim if look is None else replace(claim, ranks=mine, look=look, harm=next(harms, claim.harm))


def uneven(rates: Mapping[int, float], slug: str | None) -> tuple[str, ...]:
    """Say that the ranks' learning rates differ, where the cause ``slug`` is about one."""
    if slug not in _OF_RATE or len(set(rates.values())) < 2:
        return ()
    groups: dict[float, list[int]] = {}
    for rank, rate in rates.items():
        groups.setdefault(rate, []).append(rank)
    told = [f"{words.number(rate)} on {words.ranks(ranks)}" for rate, ranks in sorted(groups.items(), reverse=True)]
    return (f"The ranks do not train alike: the learning rate is {words.few(told, most=_MOST)}.",)
