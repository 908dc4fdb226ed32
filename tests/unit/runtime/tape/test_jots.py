"""Where steps are short a call is put on the tape only when somebody asks: the tape is then what it would have been."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from nandiag.runtime.tape.noted import jots, pace
from nandiag.runtime.tape.packed.words import Given


class Loop:
    """A loop with an accuracy, two micro-batches and a helper for the loss."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.x, self.y = torch.randn(6, 4), torch.randint(0, 3, (6, 1))

    def loss(self, output):
        own = output.log_softmax(-1)[torch.arange(6), self.y[:, 0]]
        spread = torch.stack([output[1:, 0], output[..., :-1, 1]]).std()
        return functional.cross_entropy(output, self.y.flatten()) + own.mean() * 0.1 + spread * 0.01

    def backward(self):
        for _ in range(2):
            output = self.model(self.x)
            (self.loss(output) * 0.5).backward()
            self.right = (output.argmax(1) == self.y.flatten()).sum()

    def clip(self):
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=0.1)

    def step(self):
        self.optimizer.zero_grad()
        self.backward()
        self.norm = self.clip()
        self.optimizer.step()


def told(entries):
    """All that a reader of the tape may ask of its entries, as plain values."""
    return [
        (
            entry.kind, entry.name, entry.grad, entry.modes, entry.micro_step,
            [(frame.code, frame.line, frame.instruction, frame.direct) for frame in entry.frames],
            [(type(word), word.version, getattr(word, "written", None)) for word in entry.words],
            [maker.name for maker in entry.makers], list(entry.kwargs), len(entry.args),
        )
        for entry in entries
    ]  # fmt: skip


def test_the_tape_is_the_same_when_it_is_asked_for(work, short):
    capture, seen = work().capture, []
    for yes in (True, False):
        short(yes=yes)
        loop = Loop()
        for turn in range(6):  # from one place, for of a new one is asked what trains there
            loop.optimizer.zero_grad()
            loop.backward()
            loop.norm = loop.clip()
            if turn < 5:
                loop.optimizer.step()
        assert bool(capture.tape.jots.many) is yes
        seen.append(told([*capture.tape.entries, *capture.tape.loose]))
        loop.optimizer.step()
    assert [row[0] for row in seen[0]].count("backward") == 2
    for row, other in zip(*seen, strict=True):
        assert row == other


def test_a_step_that_ends_well_is_never_packed(work, short, monkeypatch):
    capture, packed = work().capture, []
    loop = Loop()
    loop.backward = lambda: loop.loss(loop.model(loop.x)).backward()
    for turn in range(13):  # from one place, for of a new one is asked what trains there
        if turn == 10:
            monkeypatch.setattr(capture.tape, "add", lambda *words: packed.append(words))
        loop.step()
        assert turn < 10 or not capture.tape.jots.many
    assert not packed


def ready(work):
    """An armed process whose next step is noted: its capture, a weight, its optimizer, a tensor from outside."""
    x = torch.ones(3)
    capture = work().capture
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        weight.square().sum().backward()
        optimizer.step()
    assert capture.tape.jots.on
    return capture, weight, optimizer, x


def test_an_argument_has_the_version_that_it_was_used_with(work, short):
    capture, weight, _, x = ready(work)
    value = weight * x
    capture.window.close()
    x.add_(1)  # as a module would, unseen
    assert len(capture.tape.jots.many) >= 1
    word = next(word for word in capture.tape.maker(value)[0].words if type(word) is Given and word.get() is x)
    assert word.version == 0
    assert x._version == 1


def test_what_a_root_module_writes_into_is_known_to_be_written(work, short):
    class Writes(nn.Module):
        def forward(self, x, y):
            x.add_(1)
            return x * y

    capture, weight, _, x = ready(work)
    model = Writes()
    model(torch.ones_like(x), weight)  # a first call is put on the tape, for what else it leaves is not known yet
    model(x, weight)
    assert capture.tape.jots.many
    first, second = capture.tape.entries[-1].words
    assert (first.written, second.written) == (True, False)


@pytest.mark.parametrize("change", ["in_place", "asks_for_gradients"])
def test_what_may_change_is_taken_at_once(change, work, short):
    capture, _, _, x = ready(work)
    x = x * 2
    assert capture.tape.jots.many
    if change == "in_place":
        x.add_(1)
    else:
        x.requires_grad_()
    assert not capture.tape.jots.many


def test_a_list_is_taken_as_it_was(work, short):
    capture, weight, _, x = ready(work)
    many = [x, weight]
    both = torch.stack(many)
    many.clear()
    assert capture.tape.jots.many
    entry, _ = capture.tape.maker(both)
    assert [word.get() for word in entry.args[0]] == [x, weight]


def test_a_graph_that_is_retained_stays_on_the_tape(work, short):
    capture, weight, optimizer, x = ready(work)
    kept = (weight * x).sum()
    kept.backward(retain_graph=True)
    assert capture.tape.jots.many
    optimizer.step()
    assert [entry.name for entry in capture.tape.whole([kept])] == ["mul", "sum"]


def test_no_graph_is_held_that_the_script_lets_go(work, short):
    """An evaluation with gradients left on: some calls are held, however long it goes on."""
    capture, weight, *_ = ready(work)
    made = []
    for _ in range(4 * jots.MOST):
        value = (weight * 2).sum()
        made.append(weakref.ref(value))
        value.item()
    del value
    gc.collect()
    assert sum(one() is not None for one in made) <= jots.MOST
    assert len(capture.tape.jots.many) <= jots.MOST


def test_what_is_large_is_not_held(work, short):
    _, weight, *_ = ready(work)
    large = torch.ones(jots.LARGEST, 2).t() * weight[0]
    reference = weakref.ref(large)
    del large
    assert reference() is None
    plain = torch.ones(jots.LARGEST + 1)
    reference = weakref.ref(plain)
    plain.sum()
    del plain
    assert reference() is None


def test_where_it_is_always_asked_for_it_is_not_put_off(work, short):
    """What is made of a graph that is retained is packed each time: then at once."""
    capture, weight, optimizer, _ = ready(work)
    for _ in range(4 * pace._IN_VAIN):  # in a few of the first steps it is asked which lines train
        weight.square().sum().backward(retain_graph=True)
        optimizer.step()
    assert not capture.tape.jots.on


def test_one_long_step_changes_nothing_and_a_few_do():
    one = jots.Jots(None)
    for seconds in (1e-4, 1e-4):
        one.step_took(seconds, 0)
    assert not one.on
    one.step_took(1e-4, 0)
    assert one.on
    for seconds in (1.0, 1.0, 1e-4, 1.0, 1.0):
        one.step_took(seconds, 0)
    assert one.on
    one.step_took(1.0, 0)
    assert not one.on


def test_calls_on_a_few_numbers_are_noted_by_hundreds(work, short):
    """The returns of an episode, added up one by one: to pack each of them would take longer than the step."""
    capture, weight, optimizer, x = ready(work)
    rewards, total = torch.rand(3 * jots.MOST), torch.zeros(())
    for reward in rewards.unbind():
        total = reward + 0.9 * total
    noted = len(capture.tape.jots.many)
    assert noted > 2 * jots.MOST
    (weight * x * total).sum().backward()
    assert len(capture.tape.jots.many) > noted
    entries = [entry.name for entry in capture.tape.whole()]
    assert entries.count("__rmul__") + entries.count("mul") >= len(rewards)
    optimizer.step()
    assert not capture.tape.jots.many


def test_of_what_is_larger_a_few_are_noted_and_no_more(work, short):
    ready(work)
    values, made = torch.rand(1 << 12), []
    for number in range(4 * jots.MOST):
        value = values * number
        made.append(weakref.ref(value))
    del value
    gc.collect()
    assert sum(one() is not None for one in made) <= 2 * jots.MOST


def test_even_of_the_smallest_calls_no_more_than_some_hundreds_are_held(work, short):
    capture, *_ = ready(work)
    value = torch.zeros(())
    for _ in range(2 * jots.MOST_SMALL):
        value = value + 1
    assert len(capture.tape.jots.many) <= jots.MOST_SMALL
