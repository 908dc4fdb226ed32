"""What is kept of a question: no memory of the script's, and nothing of what is no loss."""

import gc
import math
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.watch.told.answers.asked import Asked
from nandiag.runtime.watch.told.answers.left_out import LeftOut
from tests.unit.runtime.watch.test_asked import leaves, refuses
from tests.unit.runtime.watch.test_left_out import Loop


def told(worker):
    worker.sentinel.last.at_exit()
    return [(one.what, one.left_on) for one in worker.harms]


@pytest.fixture
def asked(recording):
    recording()
    return Asked(SimpleNamespace(step=3, micro_step=0), Tape())


def test_memory_of_numpys_that_was_asked_of_is_let_go_at_once(asked):
    memory = np.zeros(8, dtype=np.float32)
    asked.of(torch.from_numpy(memory), None)
    memory.resize(16)  # raises where anything else refers to it


def test_what_a_small_view_lies_in_is_let_go_and_what_is_large_is_not_copied(asked):
    large = torch.zeros(1 << 16)
    gone = weakref.ref(large)
    asked.of(large[:4], None)
    asked.of(large, None)
    del large
    gc.collect()
    assert gone() is None
    assert [one.tensor.untyped_storage().nbytes() for one in asked._questions] == [16]


def test_no_graph_is_held_and_nothing_when_the_answer_is_read(asked):
    loss = torch.ones((), requires_grad=True) * 2
    gone = weakref.ref(loss)
    asked.of(loss, None)
    del loss
    assert gone() is None
    asked.of(torch.ones(()), None)
    asked.answered(False, sys._getframe())
    assert not asked._questions


def test_nothing_is_copied_into_a_graph_of_the_device_that_is_being_captured(asked, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.watch.told.answers.asked.capturing", lambda: True)
    asked.of(torch.ones(()), None)
    assert not asked._questions


def test_a_line_that_is_answered_now_so_now_otherwise_is_soon_let_pass(asked, monkeypatch):
    looks = []
    monkeypatch.setattr(asked, "_know", lambda: looks.append(1))
    frame = sys._getframe()
    for number in range(2000):
        asked._clock.step = number
        asked.of(torch.ones(()), None)
        asked.answered(number % 2 == 0, SimpleNamespace(f_code=frame.f_code, f_lasti=7))
    assert 2 <= len(looks) <= 520


def test_few_of_many_questions_are_kept(asked):
    for _ in range(100):
        asked.of(torch.ones(()), None)
    assert asked._count == 100
    assert len(asked._questions) == 16


class Own(torch.Tensor):
    seen = ()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen += (str(func),)
        return func(*(one.plain if isinstance(one, Own) else one for one in args), **(kwargs or {}))

    @staticmethod
    def __new__(cls, plain):
        made = torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype)
        made.plain = plain
        return made


def test_a_class_of_the_scripts_sees_nothing_of_it(work):
    work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    loss = model(torch.ones(1, 2)).sum()
    assert torch.isnan(Own(torch.full((2,), math.nan))).any()
    assert Own.seen
    assert not any("detach" in one or "clone" in one for one in Own.seen)
    assert loss.requires_grad


def asks_of_padded_targets(loss):
    target = torch.tensor([math.nan, 1.0])
    keep = ~torch.isnan(target)
    return bool(keep.all()) or True


def reads_the_best_so_far(loss):
    return torch.tensor(math.inf).item() > 0


def reads_a_metric(loss):
    hits, total = torch.zeros(()), torch.zeros(())
    return math.isnan((hits / total).item())


def asks_and_spoils_it_later(loss):
    low = loss.detach() * 1.0
    assert torch.isfinite(low).all()
    low.fill_(math.inf)
    return True


@pytest.mark.parametrize(
    "asks", [asks_of_padded_targets, reads_the_best_so_far, reads_a_metric, asks_and_spoils_it_later]
)
def test_what_is_no_loss_is_not_what_the_script_left_on(work, monkeypatch, asks):
    refuses(monkeypatch)
    worker = work()
    kept = leaves(asks, spoilt=None)
    assert told(worker) == []
    assert kept


def test_the_newest_question_is_the_one_it_left_on(work, monkeypatch):
    refuses(monkeypatch)
    worker = work()

    def asks(loss):
        aside = loss * math.nan
        if torch.isnan(aside):
            aside = torch.zeros(())
        return torch.isnan(loss.detach()).any()  # here

    kept = leaves(asks)
    assert told(worker) == [("loss", True)]
    assert worker.looked[0].site.source.strip().endswith("# here")
    assert kept


@pytest.mark.parametrize(
    "asks",
    [
        lambda loss: torch.isnan(input=loss),
        lambda loss: loss != loss,  # noqa: PLR0124 - as scripts do
        lambda loss: bool((loss != loss).int().item()),  # noqa: PLR0124
    ],
)
def test_other_ways_to_ask_are_heard_too(work, monkeypatch, asks):
    refuses(monkeypatch)
    worker = work()
    kept = leaves(asks)
    assert told(worker) == [("loss", True)]
    assert kept


def test_without_a_replay_left_the_line_is_told_and_why(work):
    worker = work(max_replays=0)
    kept = leaves(torch.isnan)
    assert told(worker) == [("loss", True)]
    assert worker.looked[0].reason == "no replay was left"
    assert worker.looked[0].site.function == "leaves"
    assert kept


@pytest.mark.parametrize(
    ("name", "home"), [("_know", Asked), ("of", Asked), ("backward_begins", LeftOut), ("_emit", LeftOut)]
)
def test_a_part_that_fails_goes_dark_and_training_goes_on(work, monkeypatch, name, home):
    def fails(*_, **__):
        raise ZeroDivisionError(name)

    monkeypatch.setattr(home, name, guarded("questions")(fails) if name in {"of", "backward_begins"} else fails)
    worker, loop = work(), Loop()
    for step in range(8):
        loop.continues(step)
    worker.sentinel.finish()
    (dark,) = worker.events(ProbeDark)
    assert (dark.probe, dark.reason.partition(" (")[0]) == ("questions", f"ZeroDivisionError: {name}")
    plain = Loop()
    for step in range(8):
        loss = plain.loss(step)
        if step not in plain.spoilt:
            plain.update(loss)
    assert all(map(torch.equal, loop.net.parameters(), plain.net.parameters()))
