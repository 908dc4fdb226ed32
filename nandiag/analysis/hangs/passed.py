"""A step that some ranks left out by themselves, as what made their calls part from the others' (reader side)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.report import Verdict
from nandiag.analysis.timeline import Timeline
from nandiag.events import Skipped, words

_OF = frozenset({"loss", "unused loss", "gradient norm"})
_PARTED = frozenset({"collective_mismatch", "collective_missing"})
# Who had a finite loss says nothing of it where all of them left that step out together.
_ALONE = (
    "{} made no step of {} at step {}{}. Unless {} left that step out as well, {} calls met later ones of theirs from "
    "there on."
)
_TOGETHER = (
    "Where each rank decides for itself, let them decide together whether a step is left out, {}: "
    "ok = torch.isfinite({}).float(); dist.all_reduce(ok, op=dist.ReduceOp.MIN) - "
    "and in a line of its own behind that: if not ok: continue"
)


def with_passed(hang: Hang | None, timeline: Timeline, first: Verdict | None) -> Hang | None:
    """Return ``hang`` with the first step that some of its ranks left out for their own loss, others not, if any.

    ``first`` is the verdict on the first loss that was left out, where its line is known.
    """
    ranks = {rank for stand in hang.stands for rank in stand.ranks} if hang is not None else set()
    skips = [one for one in timeline.skips if one.event.by == "script" and one.event.of in _OF and one.rank in ranks]
    if hang is None or hang.slug not in _PARTED or not skips:
        return hang
    newest = max(one.attempt for one in skips)
    step = min(one.event.step for one in skips if one.attempt == newest)
    at = {one.rank: one.event for one in skips if (one.attempt, one.event.step) == (newest, step)}
    if len(at) == len(ranks) or (hang.step is not None and hang.step < step):
        return hang
    told = _told(at, ranks - set(at), step, first)
    return replace(hang, evidence=(told, *hang.evidence), help=(_together(at), *hang.help))


def _together(at: dict[int, Skipped]) -> str:
    """Return how the ranks decide together on what they left the step out for: a norm is known behind the backward."""
    by_norm = at[min(at)].of == "gradient norm"
    return _TOGETHER.format(*(("behind the backward and before the step", "norm") if by_norm else _BEFORE))


_BEFORE = ("before the backward", "loss")


def _told(at: dict[int, Skipped], others: set[int], step: int, first: Verdict | None) -> str:
    skip = at[min(at)]
    value = words.bad_value(skip.loss) or "bad"
    what = f"its {value} {'loss' if skip.of != 'gradient norm' else skip.of}"
    whose = "its" if len(at) == 1 else "their"
    origin = first.origin if first is not None else None
    known = origin is not None and origin.step == step and origin.file is not None and origin.line is not None
    line = f" ({words.file_name(origin.file)}:{origin.line})" if known and origin is not None else ""
    who = words.ranks(at)
    return _ALONE.format(f"{who[:1].upper()}{who[1:]}", what, step, line, words.ranks(others), whose)
