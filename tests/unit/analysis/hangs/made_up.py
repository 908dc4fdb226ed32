"""Made-up standings of ranks, and runs of them: what the tests of waiting ranks say in one line."""

from dataclasses import replace

from nandiag.events import Attached, Raised, Record
from nandiag.events.standing import CallFact, FrameFact, GroupFact, Standing
from nandiag.store.reader import Pulse, RankLog, RunRecord
from nandiag.store.run import AgentEnd, RankEnd, RunInfo

TIMEOUT = Raised(
    "RuntimeError", "[unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete", "", 1
)
RESET = Raised(
    "RuntimeError",
    "[pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer.",
    'Traceback (most recent call last):\n  File "/home/u/train.py", line 22, in epoch\n    loss.backward()\n'
    '  File "/x/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward\n    return run(\n',
    15,
)
CLOSED = Raised("RuntimeError", "[pair.cc:553] Connection closed by peer [127.0.0.1]:1", "", 1)


def at(line, function="train"):
    return FrameFact("/home/u/train.py", line, function, "user", f"    line_{line}()", (4, 12))


def call(op="all_reduce", line=10, state="done", shape=(4,), step=0, group="0", **more):
    given = {"dtype": "float32", "shapes": (shape,), "place": at(line)} if shape else {"place": at(line)}
    return CallFact(op, group, 0, state, step=step, **{**given, **more})


def numbered(calls):
    counts = {}
    for one in calls:
        key = (one.group, one.op in {"send", "recv"} and one.op, one.peer if one.op in {"send", "recv"} else None)
        yield replace(one, seq=counts.get(key, 0))
        counts[key] = counts.get(key, 0) + 1


def stands(*calls, why="stalled", stack=(), step=9, world=2, groups=None, native=(), moves=50):
    calls = tuple(numbered(calls))
    groups = groups or {"0": ((0, world - 1),)}
    told = tuple(
        GroupFact(
            name, "default_pg" if name == "0" else "undefined", members,
            sum(one.group == name and one.op not in {"send", "recv"} for one in calls),
            len(native) if native else None,
        )
        for name, members in groups.items()
    )  # fmt: skip
    return Standing(why, 1000.0, moves, step, told, calls, tuple(stack), tuple(native))


def rank(number, standing=None, *events, world=2, stack=(), moves=0):
    head = Attached(number, world, number, 0, "node0", 100 + number, "site", "3.12", "0.1.0")
    records = tuple(Record(seq, 1000.0 + seq, event) for seq, event in enumerate([head, *events]))
    return RankLog(number, 0, 100 + number, records, Pulse(10, 2000.0, moves), (), standing, tuple(stack))


def ended(number, code=None, signal=None, *, ours=False):
    return RankEnd(number, code, signal, 100 + number, 1.0, stopped_by_launcher=ours)


def run(*logs, ends=(), state="failed", hang=None, world=2):
    info = RunInfo("r1", ("nandiag", "run", "train.py"), "2026-01-02T03:04:05+00:00", world_size=world)
    code = {"succeeded": 0, "signalled": 130}.get(state, 1)
    return RunRecord(info, logs, (AgentEnd("node0", 1, 0, code, state, ranks=tuple(ends), hang=hang),))
