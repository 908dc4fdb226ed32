"""Whatever the ranks' files say of where they stood, a report comes of it."""

import json
import random

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.report import Report
from nandiag.events import Attached, Finished, Raised, Record
from nandiag.events.forms import build, plain
from nandiag.events.standing import CallFact, FrameFact, GroupFact, Standing
from nandiag.render import json as as_json
from nandiag.render import markdown, terminal
from nandiag.store.reader import Pulse, RankLog, RunRecord
from nandiag.store.run import AgentEnd, HangEnd, RankEnd, RunInfo

OPS = ("all_reduce", "broadcast", "barrier", "send", "recv", "destroy_process_group", "init_process_group", "x\x1b[31m")


def frame(chance):
    if chance.random() < 0.3:
        return None
    file = chance.choice(("/u/train.py", "/lib/torch/distributed/distributed_c10d.py", "C:\\u\\t.py", "\x1b]0;x\x07"))
    column = chance.choice((None, (0, 3), (9, 2), (0, 900)))
    kind = chance.choice(("user", "torch", "internal", "?"))
    return FrameFact(
        file, chance.choice((0, 3, 10**9)), "f", kind, chance.choice((None, "", "x = y", "日本" * 300)), column
    )


def call(chance):
    return CallFact(
        chance.choice(OPS), chance.choice(("", "0", "1", "?")), chance.choice((0, 1, 2, 3, 10**12)),
        chance.choice(("waits", "issued", "done", "raised", "?")), chance.choice((0, 1)),
        chance.choice((None, 0, 1, 5)), chance.choice((None, 0, 1, 2)), chance.choice((None, 0, 3)),
        chance.choice((None, 0, 1, 9)), chance.choice((None, "sum", "max")), chance.choice((None, "float32", "")),
        chance.choice(((), ((),), ((2, 3),), ((0,), (5,)))), None, chance.choice((None, "", "E: x\ny")), frame(chance),
    )  # fmt: skip


def group(chance):
    members = chance.choice(((), ((0, 1),), ((0, 3),), ((5, 2),), ((0, 10**9),)))
    return GroupFact(chance.choice(("0", "1", "")), chance.choice(("default_pg", "", "tp")), members,
                     chance.choice((0, 2, 4, 10**15)), chance.choice((None, 0, 2, 3)), chance.choice((0, 1)),
                     chance.choice((0, 0, 2)), chance.choice((None, -1, 3)), chance.choice((None, -1, 2)))  # fmt: skip


def some(make, chance, most):
    return tuple(make(chance) for _ in range(chance.randrange(most)))


def standing(chance):
    stack = tuple(one for one in (frame(chance) for _ in range(3)) if one is not None)
    return Standing(
        chance.choice(("stalled", "raised", "left", "crashed", "dumped", "?")), 1.0, chance.choice((0, 50)), 3,
        some(group, chance, 3), some(call, chance, 7), stack, some(call, chance, 4),
    )  # fmt: skip


def log(chance, rank, world):
    events = [Attached(rank, world, rank, 0, "h", 9, "site", "3", "0")]
    if chance.random() < 0.5:
        events.append(chance.choice((Finished(3), Raised("RuntimeError", "Timed out waiting 5ms", "", 2))))
    records = tuple(Record(seq, 1.0, event) for seq, event in enumerate(events))
    told = standing(chance) if chance.random() < 0.8 else None
    return RankLog(rank, 0, 9 + rank, records, Pulse(3, 1.0, 50), (), told)


@pytest.mark.parametrize("seed", range(40))
def test_a_report_comes_of_it(seed):
    chance = random.Random(seed)  # noqa: S311 - the same runs each time
    for _ in range(25):
        world = chance.choice((1, 2, 4))
        logs = tuple(log(chance, rank, world) for rank in range(world) if chance.random() < 0.9)
        ends = tuple(
            RankEnd(rank, *chance.choice(((0, None), (1, None), (None, 15), (None, 6)))) for rank in range(world)
        )
        hang = HangEnd(9.0, (0,)) if chance.random() < 0.5 else None
        state = chance.choice(("failed", "signalled", "succeeded"))
        agent = AgentEnd("h", 1, 0, 1, state, ranks=ends, hang=hang)
        info = RunInfo("r", ("x",), "2026-01-02T03:04:05+00:00", world_size=world)
        report = analyse(RunRecord(info, logs, (agent,)))
        assert terminal.lines(report, terminal.Place("folder"), 60)
        assert markdown.dumps(report)
        assert plain(build(Report, json.loads(as_json.dumps(report)))) == json.loads(as_json.dumps(report))
