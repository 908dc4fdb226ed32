"""Of a short step that leaves a graph behind only what that graph needs is put on the tape; what is drawn is noted."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional


class Adversaries:
    """A maker and a judge that take turns; what the maker made for the judge's turn is used in its own."""

    def __init__(self):
        torch.manual_seed(0)
        self.maker, self.judge = nn.Linear(3, 4), nn.Linear(4, 1)
        self.optimizers = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in (self.maker, self.judge)]
        self.real = torch.randn(6, 4)

    def judge_learns(self):
        self.made = self.maker(torch.randn(6, 3))
        loss = functional.softplus(-self.judge(self.real)).mean()
        loss = loss + functional.softplus(self.judge(self.made.detach())).mean()
        self.optimizers[1].zero_grad()
        loss.backward()
        self.optimizers[1].step()

    def maker_learns(self):
        loss = functional.softplus(-self.judge(self.made)).mean()
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()


def added(capture, monkeypatch):
    """The names of all that is put on the tape from here on."""
    names, add = [], capture.tape.add

    def adds(entry, *words):
        names.append(entry.name)
        add(entry, *words)

    monkeypatch.setattr(capture.tape, "add", adds)
    return names


def test_of_two_that_take_turns_only_what_is_used_in_the_other_turn_is_put_on_the_tape(work, short, monkeypatch):
    capture, loop = work().capture, Adversaries()
    names = None
    for turn in range(90):
        if turn == 80:
            names = added(capture, monkeypatch)
        loop.judge_learns()
        loop.maker_learns()
    assert names == ["randn", "Linear"] * 10


def test_what_a_graph_needs_that_lives_on_is_there_when_it_is_asked_for(work, short):
    capture, loop = work().capture, Adversaries()
    for _ in range(90):
        loop.judge_learns()
        loop.maker_learns()
    loop.judge_learns()
    maker, index = capture.tape.maker(loop.made)
    assert (maker.function, index, maker.step) == (loop.maker, 0, capture.tape.step - 1)
    noise = next(iter(maker.makers))
    assert noise.name == "randn"
    noise.generators.put_back()
    assert torch.equal(loop.maker(noise.function(*noise.args, **noise.kwargs)), loop.made)


def test_a_graph_that_nobody_uses_and_nobody_has_is_let_go(work, short, monkeypatch):
    capture = work().capture
    model = nn.Linear(4, 3)
    optimizer, x = torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(6, 4)

    def step():
        output = model(x)
        spread = (output.softmax(-1) * output.log_softmax(-1)).sum(-1).mean()  # for the log alone
        seen.append(spread.detach())
        optimizer.zero_grad()
        functional.mse_loss(output, x[:, :3]).backward()
        optimizer.step()

    seen, names = [], None
    for turn in range(90):
        if turn == 80:
            names = added(capture, monkeypatch)
        step()
    assert not names


@pytest.mark.parametrize("draw", ["outside", "with_gradient"])
def test_what_is_drawn_is_noted_with_the_state_that_it_was_drawn_from(draw, work, short):
    capture, x = work().capture, torch.ones(40)
    weight = nn.Parameter(torch.ones(40))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def value():
        return weight * torch.randn(40) if draw == "outside" else functional.dropout(weight * x, 0.5) * x

    for _ in range(4):
        value().square().sum().backward()
        optimizer.step()
    drawn = value()
    assert len(capture.tape.jots.many) == (2 if draw == "outside" else 3)
    name = "randn" if draw == "outside" else "dropout"
    entry = next(one for one in capture.tape.maker(drawn)[0].makers if one.name == name)
    entry.generators.put_back()
    assert torch.equal(value(), drawn)


ROWS = 1 << 21  # more than is held


def ready(work, value):
    """An armed process whose next step is noted: its capture."""
    capture = work().capture
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        (weight * value()).square().mean().backward()
        optimizer.step()
    return capture


@pytest.mark.parametrize("index", [lambda rows: rows, lambda rows: (rows, slice(None))])
def test_rows_of_a_large_set_of_data_are_noted_and_the_set_is_not_held(index, work, short):
    held, rows = [torch.ones(ROWS, 1)], torch.tensor([5, ROWS - 1])
    capture = ready(work, lambda: held[0][index(rows)])
    kept = held[0][index(rows)]
    assert len(capture.tape.jots.many) == 1
    held[0] = weakref.ref(held[0])
    assert held[0]() is None
    assert capture.tape.maker(kept) is None


def test_of_rows_of_a_large_set_it_is_known_what_they_were_taken_from(work, short):
    data = torch.ones(ROWS)
    capture = ready(work, lambda: data[:3])
    kept = data[:3]
    assert len(capture.tape.jots.many) == 1
    entry = capture.tape.maker(kept)[0]
    assert entry.name == "__getitem__"
    assert entry.words[0].get() is data


def test_what_a_call_has_made_that_is_large_is_put_on_the_tape_with_what_is_taken_of_it(work, short):
    data = torch.ones(ROWS)
    capture = ready(work, lambda: (data * 2)[:3])
    kept = (data * 2)[:3]
    maker = capture.tape.maker(kept)[0]
    assert (maker.name, [one.name for one in maker.makers]) == ("__getitem__", ["mul"])


def test_what_is_large_is_held_where_the_tape_would_hold_it(work, short):
    """Until the step is over, and no longer."""
    data = [torch.ones(70_000)]
    capture = ready(work, lambda: data[0].sum() * 2)
    kept, known = data[0].sum(), weakref.ref(data[0])
    data.clear()
    assert capture.tape.maker(kept)[0].name == "sum"
    capture.step_ends(capture.tape.step + 1)
    assert known() is None


def test_what_is_written_into_a_large_set_is_behind_what_was_taken_of_it(work, short):
    data = torch.ones(ROWS)
    capture = ready(work, lambda: data[:3])
    kept = data[:3]
    data.add_(1.0)
    assert capture.tape.maker(kept)[0].words[0].version == data._version - 1


@pytest.mark.parametrize(("split", "name"), [
    (lambda x: x.chunk(2)[1], "chunk"), (lambda x: list(x)[1], "unbind"), (lambda x: x.max(1).values, "max"),
    (lambda x: torch.topk(x, 2)[0], "topk"),
])  # fmt: skip
def test_what_is_one_of_several_that_a_call_returns_is_made_again_alone(split, name, work, short):
    data = torch.randn(4, 3)
    capture = ready(work, lambda: split(data))
    part = split(data)
    assert capture.tape.jots.many
    maker, index = capture.tape.maker(part)
    assert (maker.name, index) == (name, 0)
    assert torch.equal(maker.function(data, *maker.args[1:], **maker.kwargs), part)
