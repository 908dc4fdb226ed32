"""Updates that were left out: in search of a loss scale, for a bad loss, or by the script (reader side)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Finding
from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Skipped, Stopping, words

# Backward calls that are steps of their own, or none.
_COUNTED = frozenset({"unused loss", "scaled gradient", "early gradient", "weights drawn anew", "searched point"})


def skips_of(timeline: Timeline) -> Iterable[Finding]:
    """Yield the findings on skipped updates: collapse or search of a scale, NaN losses, the script's own."""
    scaler = [one for one in timeline.skips if one.event.by != "script"]
    nan = {_update(one) for one in scaler if one.event.loss is not None and math.isnan(one.event.loss)}
    search = [one for one in scaler if _update(one) not in nan]
    fallen = timeline.collapse()
    yield from _search(search, len(nan), timeline) if fallen is None else [_collapse(fallen, scaler, timeline)]
    yield from _by_loss([one for one in scaler if _update(one) in nan], len(nan))
    own = [one for one in timeline.skips if one.event.by == "script"]
    yield from _own_search([one for one in own if one.event.of == "scaled gradient"])
    yield from _early([one for one in own if one.event.of == "early gradient"])
    yield from _anew([one for one in own if one.event.of == "weights drawn anew"])
    yield from _found_back([one for one in own if one.event.of == "searched point"])
    for kinds, of in ((("loss", "unused loss"), "loss"), (("gradient norm",), "gradient norm")):
        yield from _by_script([one for one in own if one.event.of in kinds], of, none=steps_of_none(timeline))


def before(claim: Claim, timeline: Timeline) -> int:
    """Return how many updates the first rank of ``claim`` had left out before: the step does not count them.

    What was written behind an update may have been so before those that were left out since: these are not among them.
    Where no optimizer steps at all there was none to leave out.
    """
    mark = claim.harm or claim.look
    if mark is None or steps_of_none(timeline):
        return 0
    behind = claim.harm is not None and claim.harm.event.behind

    def is_before(one: Seen[Skipped] | Seen[Stopping]) -> bool:
        here = (one.rank, one.attempt) == (mark.rank, mark.attempt) and one.seq < mark.seq
        return here and not (behind and one.event.step >= claim.step)

    own = [one for one in timeline.skips if one.event.of not in _COUNTED and is_before(one)]
    told = sum(max((one.event.total for one in own if one.event.by == by), default=0) for by in ("scaler", "script"))
    last = max(own, key=lambda one: one.seq, default=None)
    # A scaler's skip for the harm itself is written before that harm.
    itself = last is not None and last.event.step == claim.step and words.bad_value(last.event.loss) is not None
    left_out = sum(one.event.action == "skip" and is_before(one) for one in timeline.stops)
    if itself and (claim.harm is None or claim.harm.event.what == "loss"):
        told -= 1
    return told + left_out


def steps_of_none(timeline: Timeline) -> bool:
    """Whether the run had come to its end with no step of any optimizer: a script may write its weights by hand."""
    own = [one for one in timeline.skips if one.event.by == "script"]
    ended = {one.rank for one in own if one.event.last and one.event.step == 0}
    return bool(ended) and ended == {one.rank for one in timeline.skips} and not any(one.event.step for one in own)


def _update(one: Seen[Skipped]) -> tuple[int, int, int]:
    """Return what is the same on all ranks that left out the same update."""
    return one.attempt, one.event.step, one.event.total


def _collapse(fallen: Seen[Skipped], skips: list[Seen[Skipped]], timeline: Timeline) -> Finding:
    """Tell of the collapse with all that was left out in the same row, which is what a stop counts too.

    Where another optimizer made its updates in between there is no such row, though none of its own was made.
    """
    own = [one.event for one in skips if (one.rank, one.attempt) == (fallen.rank, fallen.attempt)]
    before = fallen.event.total - fallen.event.in_a_row
    last = max((one for one in own if one.total - one.in_a_row == before), key=lambda one: one.total)
    text = f"From step {last.step} on GradScaler left out {words.count(last.in_a_row, 'update')} in a row"
    text += f" ({before:,} more since step {own[0].step})" if before > 0 and own[0].step < last.step else ""
    past = timeline.newest(fallen)
    if len(set(past.optimizer)) > 1 and last.in_a_row == 1:
        last = own[-1]
        text = f"By step {last.step} GradScaler had left out {words.count(last.total, 'update')}, while another"
        text += " optimizer made its own,"
    text += f" and reached a scale of {words.number(last.scale)}" if last.scale is not None else ""
    return Finding("loss_scale_collapse", "anomaly", f"{text}: its scale has collapsed.", _of(skips), fallen.event.step)


def _search(skips: list[Seen[Skipped]], others: int, timeline: Timeline) -> Iterable[Finding]:
    if skips:
        text = f"GradScaler left out {_most(skips, others)} in search of its scale"
        low = [one for one in skips if one.event.collapsed]
        text += _found(low[-1], skips, timeline) if low else ": expected, and harmless."
        slug = "loss_scale_found" if low else "loss_scale_skip"
        yield Finding(slug, "info", text, _of(skips), skips[0].event.step)


def _found(low: Seen[Skipped], skips: list[Seen[Skipped]], timeline: Timeline) -> str:
    """Tell at which scale updates are made again, which has seemed to collapse before."""
    scale = next((one for one in reversed(timeline.newest(low).scale) if one is not None), None)
    now = "" if scale is None else f", which is {words.number(scale)} by now"
    last = next(one for one in reversed(skips) if (one.rank, one.attempt) == (low.rank, low.attempt))
    return f"{now}: {_made(timeline.updates_since(last))} behind the last of them."


def _made(updates: int) -> str:
    return f"{words.count(updates, 'update')} {'was' if updates == 1 else 'were'} made"


def _own_search(skips: list[Seen[Skipped]]) -> Iterable[Finding]:
    if skips:
        text = f"The script left out {words.count(_largest(skips), 'update')} in search of its own loss scale"
        yield Finding("loss_scale_skip", "info", f"{text}: expected, and harmless.", _of(skips), skips[0].event.step)


def _by_loss(skips: list[Seen[Skipped]], count: int) -> Iterable[Finding]:
    if skips:
        text = f"GradScaler left out {words.count(count, 'step')} with a NaN loss, the first at step"
        yield Finding("loss_skip", "info", f"{text} {skips[0].event.step}.", _of(skips), skips[0].event.step)


def _by_script(skips: list[Seen[Skipped]], of: str, *, none: bool) -> Iterable[Finding]:
    if not skips:
        return
    value, step = words.bad_value(skips[0].event.loss) or "bad", skips[0].event.step
    count = sum(_largest([one for one in skips if one.event.of == kind]) for kind in {one.event.of for one in skips})
    losses = f"made no step of {count:,} {value} {'loss' if count == 1 else 'losses'}"
    what = losses if of == "loss" else f"left out {words.count(count, 'update')} for a {value} gradient norm"
    if none:
        text = f"No optimizer made a step in this run. {_alone(of, count, value)} on {words.ranks(_of(skips))}."
        yield Finding("script_skip", "warning", text, _of(skips), step)
        return
    text = f"The script itself {what}, the first at step {step}"
    ended = max((one.event.step for one in skips if one.event.last), default=None)
    more = "" if ended is None else f" From step {ended} on no update was made any more."
    yield Finding("script_skip", "warning", f"{text}, on {words.ranks(_of(skips))}.{more}", _of(skips), step)


def _early(skips: list[Seen[Skipped]]) -> Iterable[Finding]:
    """Tell of gradients that came before any update: what the script did with them made no weight bad."""
    if skips:
        value, step = words.bad_value(skips[0].event.loss) or "bad", skips[0].event.step
        text = f"{words.count(_largest(skips), 'backward call')} before the first update gave {value} gradients"
        text += f", the first at step {step}, on {words.ranks(_of(skips))}: no weight became bad by them."
        yield Finding("script_skip", "warning", text, _of(skips), step)


def _anew(skips: list[Seen[Skipped]]) -> Iterable[Finding]:
    """Tell of updates that were made on bad losses, and are of no account any more."""
    if skips:
        value, step = words.bad_value(skips[0].event.loss) or "bad", skips[0].event.step
        text = (
            f"What {words.count(_largest(skips), 'update')} on a {value} loss had made was given up by the script, the"
        )
        text += f" first at step {step}, on {words.ranks(_of(skips))}: it went on with other weights."
        yield Finding("script_skip", "warning", text, _of(skips), step)


def _found_back(skips: list[Seen[Skipped]]) -> Iterable[Finding]:
    """Tell of a line search that took a point of a bad loss, and left it behind."""
    if skips:
        value, step = words.bad_value(skips[0].event.loss) or "bad", skips[0].event.step
        text = f"The optimizer's line search took a point where the loss is {value}, at step {step}"
        text += f" on {words.ranks(_of(skips))}, and found back: the losses behind it were finite."
        yield Finding("script_skip", "warning", text, _of(skips), step)


def _alone(of: str, count: int, value: str) -> str:
    if of == "loss":
        return f"{count:,} {'loss was' if count == 1 else 'losses were'} {value}"
    return f"The gradient norm was {value} {count:,} times" if count > 1 else f"The gradient norm was {value} once"


def _of(skips: list[Seen[Skipped]]) -> tuple[int, ...]:
    return tuple(sorted({one.rank for one in skips}))


def _most(skips: list[Seen[Skipped]], others: int = 0) -> str:
    """Return how many steps the rank with the most skips left out, but for ``others`` of another kind."""
    return words.count(_largest(skips, others), "step")


def _largest(skips: list[Seen[Skipped]], others: int = 0) -> int:
    """Return the most that a rank has left out; totals count on from skips that were not written.

    ``others`` of the totals are skips of another kind.
    """
    told: dict[tuple[int, int], tuple[int, int]] = {}
    for one in skips:
        lines, total = told.get((one.rank, one.attempt), (0, 0))
        told[one.rank, one.attempt] = lines + 1, max(total, one.event.total)
    return max(max(lines, total - others) for lines, total in told.values())
