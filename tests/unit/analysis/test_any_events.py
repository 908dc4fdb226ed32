"""Whatever the files hold, there is a report and it can be shown: events made at random, from their own annotations."""

import dataclasses
import json
import math
import random
import types
import typing

import pytest

from nandiag.analysis import Report, analyse
from nandiag.events import PHASES, Attached, Record
from nandiag.events.codec import KINDS
from nandiag.events.forms import build
from nandiag.render import markdown, terminal
from nandiag.render.json import dumps
from nandiag.store.reader import Pulse, RankLog, RunRecord
from nandiag.store.run import AgentEnd, RunInfo

WORDS = {
    "phase": [*PHASES, "eclipse"],
    "what": ["loss", "gradient", "parameter", "buffer", "optimizer_state", "frozen", "aura"],
    "outcome": ["found", "finite", "failed", "refused", "lost"],
    "method": ["modules", "replay", "tape", "check"],
    "source": ["op", "parameter", "buffer", "input", "outside", "received", None, "    y = log(x)", "    a / b.norm()"],
    "op": [
        *(f"aten.{op}" for op in ("log.default", "div.Tensor", "exp.default", "std.correction", "add.Tensor")),
        *(f"aten.{op}" for op in ("_ctc_loss.Tensor", "pow.Tensor_Scalar", "nll_loss_forward.default", "_softmax.int")),
        "mm", "", None,
    ],
    "node": ["SqrtBackward0", "PowBackward0", "MyBackward", "LinalgEighBackward0", None],
    "action": ["stop", "skip"],
    "by": ["scaler", "script"],
    "state": ["succeeded", "failed", "stopped", "odd"],
}  # fmt: skip
NUMBERS = [0.0, -1.0, 65504.0, 1e300, math.nan, math.inf, -math.inf]


def value(hint, name, dice):
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if name in WORDS and hint is not bool:
        choices = (
            WORDS[name] if origin or None not in WORDS[name] else [word for word in WORDS[name] if word is not None]
        )
        return dice.choice(choices)
    if origin in (types.UnionType, typing.Union):
        return value(dice.choice(parts), name, dice)
    if origin is tuple:
        many = len(parts) if parts[-1] is not Ellipsis else dice.randrange(4)
        return tuple(value(parts[0], "", dice) for _ in range(many))
    if origin is dict:
        texts = {"torch": "2.13.0", "\x1b[2J": "\x1b[2J"}
        looked = {
            "arg1": dice.choice([0, -1, 0.5, "x", "nan", None]), "float64_finite": dice.choice([True, False, 3]),
            "float64_absmax": dice.choice([1.0, "inf", None]), "complete": dice.choice([True, False]),
            "collective": dice.choice(["all_reduce", "fp16_hook", 3, None]), "by": dice.choice(["script", "comm_hook"]),
            "local_gradient_absmax": dice.choice([1.0, 1e6, "nan", "x", None]), "parameters": dice.choice([["w"], 3]),
            "reconstructed": dice.choice([True, False, None]), "dataset": dice.choice(["D", None]),
        }  # fmt: skip
        return texts if parts[1] is str else looked
    if dataclasses.is_dataclass(hint):
        return anything(hint, dice)
    scalars = {
        int: lambda: dice.choice([-1, 0, 1, 2, 5, 10**9]), float: lambda: dice.choice(NUMBERS),
        str: lambda: dice.choice(["", "fc.weight", "x\x1b[2J\n", "ö"]), bool: lambda: dice.random() < 0.5,
        type(None): lambda: None, object: lambda: None,
    }  # fmt: skip
    return scalars[hint]()


def anything(cls, dice):
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: value(hints[field.name], field.name, dice) for field in dataclasses.fields(cls)})


def some_run(seed):
    dice = random.Random(seed)  # noqa: S311 - chance, not secrecy
    kinds = [cls for cls in KINDS.values() if cls is not Attached]
    logs = []
    for number in range(dice.randrange(4)):
        events = [anything(dice.choice(kinds), dice) for _ in range(dice.randrange(12))]
        head = [Attached(number, dice.randrange(6), 0, 0, "n", 1, "site", "3", "0")] if dice.random() < 0.8 else []
        records = tuple(Record(seq, 1.0, event) for seq, event in enumerate([*head, *events]))
        pulse = Pulse(dice.randrange(9), 1.0) if dice.random() < 0.5 else None
        logs.append(RankLog(number, dice.randrange(2), number, records, pulse, ("torn",)))
    agents = tuple(anything(AgentEnd, dice) for _ in range(dice.randrange(2)))
    info = anything(RunInfo, dice) if dice.random() < 0.5 else None
    if info is not None:
        info = dataclasses.replace(info, world_size=dice.randrange(6))
    return RunRecord(info, tuple(logs), agents, ("note",))


@pytest.mark.parametrize("seed", range(150))
def test_any_run_gives_a_report_that_can_be_shown(seed):
    report = analyse(some_run(seed))
    text = dumps(report)
    assert dumps(build(Report, json.loads(text))) == text
    assert markdown.dumps(report).startswith("## nandiag")
    lines = terminal.lines(report, terminal.Place("RUN"), 60)
    assert lines
    assert "\x1b" not in "".join(line.plain for line in lines)
    origin = report.verdict.origin
    lost = report.run.state == "stopped" and report.hang is None  # for harm of which nothing may be left
    assert report.verdict.anomaly == (origin is not None or lost)
    assert origin is None or (origin.rank == min(origin.ranks) and origin.kind in {"nan", "inf"})
    assert report.verdict.reproduced is not True or report.verdict.confidence == "reproduced"
