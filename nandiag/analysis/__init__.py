"""Events of all ranks in, findings out: no torch, no files, no clock (launcher and reader)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.analysis import ranks, run, timeline, verdict
from nandiag.analysis.causes import Explain
from nandiag.analysis.findings import findings_of
from nandiag.analysis.hangs import held
from nandiag.analysis.hangs.finding import told_of
from nandiag.analysis.hangs.passed import with_passed
from nandiag.analysis.nccl.summary import Logs
from nandiag.analysis.origin import choose
from nandiag.analysis.place import origin_of
from nandiag.analysis.report import Report
from nandiag.analysis.verdict import Background
from nandiag.analysis.verdict.left_out import left_out
from nandiag.analysis.verdict.rates import rates_of
from nandiag.analysis.ways.left import without_orderly
from nandiag.analysis.ways.messages import with_senders
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
    events = with_senders(timeline.build(record.logs))
    started = run.run_of(record)
    claim = choose(events, states)
    hang = held.hang_of(record, states, logs, started)
    states = held.victims(states, logs) if hang is not None else states
    passed = left_out(events, states, record.logs, causes) if claim is None else None
    hang = with_passed(hang, events, passed)
    if claim is None:
        concluded = verdict.healthy(states, logs, started, hang)
    else:
        history = run.newest_history(record, logs.get(claim.ranks[0]))
        rates = rates_of({rank: run.newest_history(record, log) for rank, log in logs.items()}, claim.step)
        concluded = verdict.of_claim(claim, origin_of(claim, record.logs), events, Background(history, causes, rates))
    unknown = claim is None and concluded.anomaly
    last = None if unknown else verdict.last_finite(events, states, logs, claim)
    where_from = (*verdict.held_bad(claim), *verdict.spoiled_between(claim, last, events))
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
