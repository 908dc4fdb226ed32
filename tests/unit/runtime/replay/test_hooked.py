"""What a communication hook that is called again tells where it shows no origin."""

import functools
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from nandiag.events import Looked
from nandiag.runtime.replay.exchanges import hooked


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), "bad values came from the hook's own state"), (1.0, "all that came out of it was finite")],
)
def test_why_a_hook_called_again_shows_nothing_is_told(value, shown):
    tracer = SimpleNamespace(bad=lambda one: bool(one.isnan().any()), writer=lambda _: None)
    looked = Looked("finite", "replay", 5, reason="finite on this rank", facts={"collective": "mine"})
    told = hooked._told(None, SimpleNamespace(tracer=tracer, roots=[]), [torch.full((2,), value)], looked)
    assert told.facts == {"collective": "mine", "hook_again": shown}
    assert told.reason == f"finite on this rank; called again, {shown}"


ERROR = {}
CALLS = 0


class Memory:
    shared: ClassVar = {}

    def __init__(self):
        self.moved = None

    def __call__(self, state, value):
        global CALLS  # noqa: PLW0603 - as scripts do
        CALLS += 1
        ERROR[0] = ERROR.get(0, 0.0) + value
        state.mul_(value)
        self.shared.setdefault("first", value)
        self.moved = value


def test_what_a_hook_carries_is_put_back_wherever_it_keeps_it():
    memory, state = Memory(), torch.ones(2)
    first = torch.tensor([1.0, 2.0])
    memory(state, first)
    ddp = SimpleNamespace(_comm_hooks=[(lambda given, value: memory(given, value + 0), state)])
    held = hooked.Held(list(hooked._reached(hooked._hooks_of([ddp]))))
    memory(state, torch.full((2,), float("nan")))
    Memory.shared.clear()
    held.put_back()
    assert (CALLS, state.tolist(), memory.moved is first) == (1, [1.0, 2.0], True)
    assert (ERROR[0].tolist(), Memory.shared["first"] is first) == ([1.0, 2.0], True)


class Kept:
    def __init__(self):
        self.last = {0: 1.0}


def note(kept, value, *, named=None):
    for one in (kept, named):
        if one is not None:
            one.last[0] = value


@pytest.mark.parametrize(
    "made",
    [
        lambda kept: lambda state, value, h=kept: note(h, value),
        lambda kept: lambda state, value, *, h=kept: note(h, value),
        lambda kept: functools.partial(note, kept),
        lambda kept: functools.partial(note, None, named=kept),
    ],
)
def test_what_a_hook_is_bound_to_is_put_back(made):
    kept = Kept()
    ddp = SimpleNamespace(_comm_hooks=[(made(kept), None)])
    held = hooked.Held(list(hooked._reached(hooked._hooks_of([ddp]))))
    kept.last[0] = float("nan")
    held.put_back()
    assert kept.last == {0: 1.0}


def test_where_a_hook_is_written_is_told():
    bound = functools.partial(functools.partial(note, None), 1.0)
    root = SimpleNamespace(_comm_hooks=[(bound, None)])
    assert hooked._written_at([root]) == {"hook_at": [__file__, note.__code__.co_firstlineno]}
    root._comm_hooks = [(Memory(), None)]
    assert hooked._written_at([root]) == {"hook_at": [__file__, Memory.__call__.__code__.co_firstlineno]}
    root._comm_hooks = [(default_hooks.allreduce_hook, None)]
    assert hooked._written_at([root]) == {}


def test_no_more_than_a_little_is_kept_of_what_hooks_carry(work, monkeypatch):
    work()
    large = torch.ones(hooked._MOST_BYTES // 4 + 1)
    ddp = torch.nn.Linear(1, 1)
    ddp._comm_hooks = [(len, {})]
    monkeypatch.setattr(hooked, "_registered", {ddp: ()})
    carried = hooked.Carried()
    carried.keep()
    assert carried.kept is not None
    ddp._comm_hooks[0][1]["left"] = large
    carried.keep()
    assert carried.kept is None
