"""Replicas that were bit-equal and no longer are, by the checksums that ranks wrote down (reader side).

Nothing is said of copies that were never seen equal: their ranks may differ by right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nandiag.analysis.report import Finding
from nandiag.events import Replicas, words
from nandiag.store.reader import RankLog

Sums = dict[int, tuple[str, ...]]


def replicas_of(logs: Mapping[int, RankLog]) -> Iterable[Finding]:
    """Yield one finding where replicas of the last attempt came apart: from which step, which ranks, which weights."""
    names, steps = _read(logs)
    equal: int | None = None
    for step in sorted(steps):
        ranks, sums = steps[step]
        if len(sums) < 2 or set(sums) != set(ranks):
            continue  # not all have written: nothing is known of this step
        apart = [index for index, column in enumerate(zip(*sums.values(), strict=False)) if len(set(column)) > 1]
        if not apart:
            equal = step
        elif equal is not None:
            yield _finding((equal, step), sums, [names[index] for index in apart if index < len(names)])
            return
        else:
            return


def _read(logs: Mapping[int, RankLog]) -> tuple[tuple[str, ...], dict[int, tuple[tuple[int, ...], Sums]]]:
    newest = max((log.attempt for log in logs.values()), default=0)
    names: tuple[str, ...] = ()
    steps: dict[int, tuple[tuple[int, ...], Sums]] = {}
    for rank, log in logs.items():
        for record in log.records:
            event = record.event
            if isinstance(event, Replicas) and log.attempt == newest:
                names = names or event.names
                steps.setdefault(event.step, (event.ranks, {}))[1][rank] = event.sums
    return names, steps


def _finding(between: tuple[int, int], sums: Sums, names: list[str]) -> Finding:
    odd = _minority(sums)
    which, differ = words.few(names, most=2) or "a weight", "differs" if len(names) == 1 else "differ"
    if odd:
        text = f"{words.ranks(odd).capitalize()}: {which} {differ} from the copies of the other ranks"
    else:
        text = f"{which} {differ} between {words.ranks(sums)}; which copy is right is not known"
    when = f"equal after {words.count(between[0], 'step')}, not after {between[1]}"
    return Finding(
        "replica_diverged", "warning", f"{text} ({when}), though they should be the same bits.", odd or tuple(sums),
        between[1] - 1,
    )  # fmt: skip


def _minority(sums: Sums) -> tuple[int, ...]:
    """Return the ranks outside the one majority; none where there is no majority."""
    common, amount = Counter(sums.values()).most_common(1)[0]
    return tuple(sorted(rank for rank, one in sums.items() if one != common)) if 2 * amount > len(sums) else ()
