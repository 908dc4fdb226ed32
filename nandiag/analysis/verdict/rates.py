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

    A rank without a rate is left out, or with another number of optimizers than most have; one that had ended before is
    compared by its last step. Of several optimizers, which ranks need not number alike, it is the lowest rate that not
    all ranks have. Alike are those whose gradients had the same norm there: what they train by is shared.
    """
    rows = {rank: found for rank, known in histories.items() if (found := _rows(known, step))}
    counts = {rank: max(map(len, found.values())) for rank, found in rows.items()}
    many = max(counts.values(), key=[*counts.values()].count, default=0)
    rows = {rank: found for rank, found in rows.items() if counts[rank] == many}
    common = set.intersection(*(set(found) for found in rows.values())) if rows else set()
    common = {at for at in common if all(len(found[at]) == many for found in rows.values())}
    if not common:
        return {}, False
    newest = {rank: sorted(rate for rate, _ in found[max(common)]) for rank, found in rows.items()}
    place = next((at for at, of in enumerate(zip(*newest.values(), strict=True)) if len(set(of)) > 1), 0)
    rates = {rank: own[place] for rank, own in newest.items()}
    return rates, many == 1 and _are_alike([[found[at][0][1] for found in rows.values()] for at in sorted(common)])


def _are_alike(norms: list[list[float | None]]) -> bool:
    """Whether the ranks' norms were the same at the newest of the steps in which all were finite."""
    finite = ([norm for norm in of if norm is not None and math.isfinite(norm)] for of in reversed(norms))
    known = next((of for of in finite if len(of) == len(norms[-1])), [])
    return len(known) > 1 and min(known) > 0 and max(known) <= min(known) * _SAME


def _rows(known: History | None, step: int) -> dict[int, list[tuple[float, float | None]]]:
    """Return the rate and the norm of each update, by its step."""
    rows: dict[int, list[tuple[float, float | None]]] = {}
    for at, rate, norm in () if known is None else zip(known.step, known.lr, known.grad_norm, strict=False):
        if at <= step and rate is not None:
            rows.setdefault(at, []).append((rate, norm))
    return rows


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
