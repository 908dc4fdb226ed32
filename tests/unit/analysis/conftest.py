"""Runs made by hand: events of ranks in, a RunRecord out."""

import math
from types import SimpleNamespace

import pytest

from nandiag.analysis.causes import Facts
from nandiag.analysis.report import Origin
from nandiag.events import Armed, Attached, Finished, Harm, Looked, Record, Site, TensorFact
from nandiag.store.reader import Pulse, RankLog, RunRecord
from nandiag.store.run import AgentEnd, RankEnd, RunInfo


def fact(name=None, *, nan=0, posinf=0, neginf=0, zeros=0, dtype="float32", shape=(4, 4), **rest):
    numel = 1
    for size in shape:
        numel *= size
    return TensorFact(
        dtype, shape, numel, nan=nan, posinf=posinf, neginf=neginf, zeros=zeros, name=name,
        **{"min": -1.0, "max": 2.0, "absmax": 2.0, **rest},
    )  # fmt: skip


def rank(number, *events, world=2, attempt=0, steps=None, notes=(), armed=True):
    head = [Attached(number, world, number, attempt, "node0", 100 + number, "site", "3.12.1", "0.1.0")]
    if armed:
        head.append(Armed("2.13.0", ("sentinel",), gpu_uuid=f"GPU-{number}"))
    records = tuple(Record(seq, 1000.0 + seq, event) for seq, event in enumerate([*head, *events]))
    pulse = None if steps is None else Pulse(steps, 2000.0)
    return RankLog(number, attempt, 100 + number, records, pulse, tuple(notes))


def run(*logs, ends=None, info=None, agents=None, world=2, notes=()):
    info = info or RunInfo("r1", ("nandiag", "run", "train.py"), "2026-01-02T03:04:05+00:00", world_size=world)
    if agents is None and ends is not None:
        failed = any(end.exit_code or end.signal for end in ends)
        agents = (AgentEnd("node0", 1, 0, int(failed), "failed" if failed else "succeeded", ranks=tuple(ends)),)
    return RunRecord(info, logs, agents or (), tuple(notes))


def loss(step, *, value=float("nan"), micro_step=0, **rest):
    kind = {"nan": 1} if math.isnan(value) else {"posinf": 1} if value > 0 else {"neginf": 1}
    bad = fact("loss", shape=(), min=None, max=None, absmax=None, **kind)
    return Harm("loss", step, "loss", (bad,), 1, 1, micro_step=micro_step, since=step - 1, loss=value, **rest)


def gradient(step, *names, **rest):
    tensors = tuple(fact(name, nan=2) for name in names or ("fc.weight",))
    return Harm("gradient", step, "backward", tensors, len(tensors), 4, since=step - 1, **rest)


def state(step, name="fc.weight", *, what="parameter", phase="optimizer", since=None, **rest):
    return Harm(what, step, phase, (fact(name, nan=3),), 1, 4, since=since, recoverable=False, **rest)


def found(step, **given):
    site = Site(
        "net.head", "Head", "aten.log.default", file="train.py", line=12, column=(8, 17), source="    y = x.log()"
    )
    values = {
        "method": "replay", "micro_step": 0, "phase": "forward", "source": "op", "site": site,
        "inputs": (fact(zeros=3, min=0.0),), "outputs": (fact(neginf=3),),
    }  # fmt: skip
    return Looked("found", step=step, **{**values, **given})


def finite(step, method="replay"):
    return Looked("finite", method, step)


def ended(number, code=None, signal=None, *, by_launcher=False):
    return RankEnd(number, code, signal, stopped_by_launcher=by_launcher)


def at(op, inputs, outputs, *, source="op", extra=None, history=None, text=None, **rest):
    """The facts on an origin at an op: ``text`` is its line of code, ``rest`` are other fields of the origin."""
    given = {"step": 5, "op": op and f"aten.{op}.default", **rest, "source": text}
    origin = Origin("nan", 0, (0,), **given, inputs=inputs, outputs=outputs)
    look = Looked("found", "replay", origin.step, source=source, facts=extra or {})
    return Facts(origin, "look", look=look, history=history)


@pytest.fixture(name="at")
def at_an_op():
    """The maker of facts on an origin at an op: ``at(op, inputs, outputs, **origin fields)``."""
    return at


@pytest.fixture
def by_hand():
    """The makers of this file under one name: runs, ranks, harms and looks."""
    return SimpleNamespace(
        fact=fact, rank=rank, run=run, loss=loss, gradient=gradient, state=state, found=found, finite=finite,
        ended=ended, finished=Finished,
    )  # fmt: skip
