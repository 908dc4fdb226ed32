"""Writes of the loop's own into what lives on are noted where steps are short, and stand in their order on the tape."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.runtime.tape.test_jots import told


def lerped(one, other):
    one.lerp_(other, 0.01)


def scaled_and_added(one, other):
    one.mul_(0.99).add_(other, alpha=0.01)


class Loop:
    """A pupil that learns from an average of its own weights, without its graph, and a running mean of the loss."""

    def __init__(self, average=lerped):
        torch.manual_seed(0)
        self.pupil = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.teacher = copy.deepcopy(self.pupil).requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.Adam(self.pupil.parameters(), lr=1e-3)
        self.x, self.mean, self.average = torch.randn(6, 4), torch.zeros(1), average

    def backward(self):
        with torch.no_grad():
            target = self.teacher(self.x)
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.pupil(self.x), target)
        self.mean.mul_(0.9).add_(loss.detach(), alpha=0.1)
        loss.backward()

    def step(self):
        self.backward()
        self.optimizer.step()
        with torch.no_grad():
            for one, other in zip(self.teacher.parameters(), self.pupil.parameters(), strict=True):
                self.average(one, other)


@pytest.mark.parametrize("average", [lerped, scaled_and_added])
def test_a_step_with_an_average_of_weights_is_never_packed(average, work, short, monkeypatch):
    capture, packed, loop = work().capture, [], Loop(average)
    for turn in range(90):
        if turn == 80:
            monkeypatch.setattr(capture.tape, "add", lambda *words: packed.append(words[0].name))
        loop.step()
    assert not packed


def test_the_tape_is_the_same_when_it_is_asked_for(work, short):
    capture, seen = work().capture, []
    for yes in (True, False):
        short(yes=yes)
        loop = Loop(scaled_and_added)
        for turn in range(70):
            if turn < 69:
                loop.step()
        loop.average(*(next(iter(one.parameters())).data for one in (loop.teacher, loop.pupil)))
        loop.backward()
        assert bool(capture.tape.jots.many) is yes
        entries = sorted([*capture.tape.entries, *capture.tape.loose], key=lambda one: one.number)
        kept = [entry.before for entry in entries if entry.in_place]
        seen.append((told(entries), [None if one is None else (one[0].shape, one[1].sum().item()) for one in kept]))
        loop.optimizer.step()
    assert seen[0][1][:4] == seen[1][1][:4]
    for row, other in zip(seen[0][0], seen[1][0], strict=True):
        assert row == other


@pytest.mark.parametrize("view", [False, True])
def test_what_is_written_into_what_a_call_of_the_step_has_made_is_put_on_the_tape(view, work, short):
    capture, loop = work().capture, Loop()
    for _ in range(70):
        loop.step()
    made = loop.x * 2
    (made[:, 0] if view else made).mul_(3.0)
    assert capture.tape.entries[-1].name == "mul_"
    assert capture.tape.maker(made)[0].name == "mul_"


def test_a_graph_that_lives_on_and_was_given_what_is_written_into_is_put_on_the_tape_with_the_write(work, short):
    capture, loop = work().capture, Loop()
    for _ in range(70):
        loop.step()
    kept = (next(iter(loop.pupil.parameters())) * loop.mean).sum()
    loop.step()
    maker = capture.tape.maker(kept)[0]
    assert maker.name == "sum"
    assert [one.name for one in maker.makers] == ["mul"]
    assert kept.requires_grad


def test_writes_into_what_is_large_are_noted_too(work, short):
    capture, loop, large = work().capture, Loop(), torch.ones(1 << 17)
    for _ in range(70):
        loop.step()
    scaled_and_added(large, torch.ones(1))
    assert [note[0].name for note in capture.tape.jots.many[-2:]] == ["mul_", "add_"]
    assert not any(entry.name == "mul_" for entry in capture.tape._entries)
    assert capture.tape.maker(large)[0].name == "add_"
