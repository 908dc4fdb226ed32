"""Events of all ranks in, findings out: no torch, no files, no clock (launcher and reader)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis import ranks, run, timeline, verdict
from nandiag.analysis.causes import Explain
from nandiag.analysis.causes.apart import fastest
from nandiag.analysis.counts import chosen, events_of
from nandiag.analysis.findings import findings_of
from nandiag.analysis.hangs import held
from nandiag.analysis.hangs.held import told_of
from nandiag.analysis.hangs.passed import with_passed
from nandiag.analysis.left_out.passed import left_out
from nandiag.analysis.nccl.summary import Logs
from nandiag.analysis.origin import Claim
from nandiag.analysis.place import origin_of
from nandiag.analysis.report import Report, Verdict
from nandiag.analysis.verdict import Background
from nandiag.analysis.verdict.rates import narrowed, rates_of
from nandiag.analysis.ways.left import without_orderly
from nandiag.store.reader import RunRecord

__all__ = ["Report", "analyse"]


def analyse(record: RunRecord, nccl: Logs | None = None, causes: tuple[Explain, ...] = ()) -> Report:
    """Return the report on what the files of a run hold; never raises for what they contain.

    ``nccl`` is what the logs of NCCL say, where there are any. ``causes`` are asked beside those of the catalogue;
    they must not raise.
    """
    record = ranks.of_the_world(record)
    states = ranks.states(record)
    record = replace(record, logs=without_orderly(record.logs, states))
    logs = ranks.last_logs(record.logs)
    found = chosen(record.logs, states)
    claim, laid = found.claim, found.events
    # What is told of single ranks is told in their own steps.
    events = laid if found.logs is record.logs else events_of(record.logs)
    started = run.run_of(record)
    hang = held.hang_of(record, states, logs, started)
    states = held.victims(states, logs) if hang is not None else states
    passed = left_out(events, states, record.logs, causes) if claim is None else None
    hang = with_passed(hang, events, passed)
    if claim is None:
        concluded = verdict.healthy(states, logs, started, hang)
    else:
        claim, concluded = _of_claim(claim, record, laid, causes)
    unknown = claim is None and concluded.anomaly
    last = None if unknown else verdict.last_finite(laid, found.states, ranks.last_logs(found.logs), claim)
    where_from = (*verdict.held_bad(claim), *verdict.spoiled_between(claim, last, laid))
    matter = [0] if claim is None else [*claim.ranks, *claim.received, min(states, default=0)]
    return Report(
        run=started,
        verdict=replace(concluded, last_finite_step=last),
        findings=(*told_of(hang), *where_from, *findings_of(events, states, logs, started, nccl=nccl)),
        ranks={str(rank): state for rank, state in states.items()},
        history=run.history_of(record, matter),
        activations=run.activations_of(record, matter),
        notes=run.notes_of(record, states),
        left_out=passed,
        nccl=nccl,
        hang=hang,
    )


def _of_claim(
    claim: Claim, record: RunRecord, events: timeline.Timeline, causes: tuple[Explain, ...]
) -> tuple[Claim, Verdict]:
    """Return the verdict on the claim, and the claim itself: of a rate that is one rank's own it is that rank's."""
    logs = ranks.last_logs(record.logs)
    histories = {rank: run.newest_history(record, log) for rank, log in logs.items()}
    rates, shared = rates_of(histories, claim.step)

    def concluded(of: Claim) -> Verdict:
        background = Background(histories.get(of.ranks[0]), causes, rates, shared)
        return run.with_sender(verdict.of_claim(of, origin_of(of, record.logs), events, background), record)

    found = concluded(claim)
    alone = narrowed(claim, events, found, fastest(rates)) if shared else claim
    return (claim, found) if alone is claim else (alone, concluded(alone))
