"""The tape holds nothing alive that the script lets go, and does not grow with the steps."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nandiag.events import ProbeDark
from nandiag.runtime.tape import entries
from nandiag.runtime.tape.noted import pace
from nandiag.runtime.tape.packed import carried

STEPS = 30


@pytest.fixture(autouse=True, params=[0.0, 1e9], ids=["long", "short"])
def steps_as_long(request, monkeypatch):
    """Short steps are noted before they are taped, and nothing may be held any longer for that."""
    monkeypatch.setattr(pace, "_SHORT", request.param)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


@pytest.fixture
def inputs():
    """Hands out inputs as a loader does, made where the tape does not see it, and tells which of them are alive."""

    class Inputs:
        def __init__(self):
            self.waiting = [torch.randn(3, 4) for _ in range(2 * STEPS)]
            self.made = []

        def __call__(self):
            tensor = self.waiting.pop()
            self.made.append(weakref.ref(tensor))
            return tensor

        @property
        def alive(self):
            gc.collect()
            return [number for number, one in enumerate(self.made) if one() is not None]

    return Inputs()


def step_of(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def ancestors(capture):
    return len(capture.tape.whole())


def test_a_step_lets_its_inputs_go(work, model, inputs):
    capture = work().capture
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = None
    for _ in range(5):
        x = inputs()
        step_of(model, optimizer, model(x).square().mean())
    assert inputs.alive == [4]
    del x
    assert inputs.alive == []
    assert ancestors(capture) == 0


def by_vmap(output, weight):
    return torch.func.vmap(lambda row: row * weight.sum())(output)


def by_a_function(output, weight):
    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * weight.sum()

        @staticmethod
        def backward(_, grad):
            return grad * weight.sum()

    return Weighted.apply(output)


@pytest.mark.parametrize("weighted", [by_vmap, by_a_function])
def test_a_function_that_is_made_anew_in_each_step_is_let_go_with_its_closure(weighted, work, model, inputs):
    work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        weighted(model(inputs()), inputs()).mean().backward()
        optimizer.step()
    gc.collect()
    assert inputs.alive == []


def test_outputs_are_not_held_within_the_step(work, model):
    work()
    out = model(torch.randn(3, 4))
    reference = weakref.ref(out)
    loss = (out * 2).sum()  # its graph saves no values
    del out
    assert reference() is None
    loss.backward()


@pytest.mark.parametrize("kept", ["losses", "detached", "outputs"])
def test_what_a_script_collects_keeps_no_inputs(kept, work, model, inputs):
    """The graph of a loss is gone after its backward: a list of losses holds no batch, and must hold none here."""
    work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collected = []
    for _ in range(5):
        out = model(inputs())
        loss = out.square().mean()
        step_of(model, optimizer, loss)
        collected.append({"losses": loss, "detached": loss.detach(), "outputs": out}[kept])
    del out, loss
    assert inputs.alive == []


@pytest.mark.parametrize(("grad", "most"), [(False, 1), (True, 9)])
def test_an_evaluation_loop_keeps_nothing(grad, most, work, model, inputs):
    """Gradients left on by mistake: then a few calls are kept, however long the loop is."""
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer, model(torch.randn(3, 4)).square().mean())
    with torch.set_grad_enabled(grad):
        total = 0.0
        for _ in range(STEPS):
            total += float(model(inputs()).detach().square().mean())
    assert len(inputs.alive) <= most
    assert len(worker.capture.tape.entries) <= most


@pytest.mark.parametrize(("few", "most_bytes"), [(8, 1 << 24), (256, 8 * 48)])
def test_an_evaluation_without_modules_keeps_little(few, most_bytes, work, inputs, monkeypatch):
    """Gradients left on: by the number of calls, or by the memory that these keep."""
    monkeypatch.setattr(entries, "_FEW_ENTRIES", few)
    monkeypatch.setattr(entries, "_FEW_BYTES", most_bytes)
    worker = work()
    weight = torch.nn.Parameter(torch.randn(4, 1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (torch.randn(3, 4) @ weight).square().mean().backward()
        optimizer.step()
    for _ in range(STEPS):
        (inputs() @ weight).square().mean().item()
    assert len(inputs.alive) <= 10
    loss = (torch.ones(3, 4) @ weight).square().mean()
    for _ in range(3 * few):
        loss = loss + 0
    loss.backward()
    assert sum(entry.name == "add" for entry in worker.capture.tape.whole()) == 3 * few


def test_a_rollout_keeps_little(work, inputs):
    """A policy that acts for a long time between updates, gradients left on, and only its actions used."""
    work()
    policy = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    state, states = inputs(), []
    for _ in range(STEPS):
        action = policy(state).argmax(1).tolist()
        state = inputs() + sum(action)
        states.append(weakref.ref(state))
    gc.collect()
    assert sum(one() is not None for one in states) <= 10
    step_of(policy, optimizer, policy(state).square().mean())


def test_a_long_accumulation_is_kept_whole(work, model, inputs):
    """All that gradients descend from stays, however many calls that are."""
    capture = work().capture
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    for part in range(STEPS):
        model(inputs()).square().mean().backward()
        assert sum(entry.kind == "root" for entry in capture.tape.whole()) == part + 1
    optimizer.step()


def test_losses_that_are_summed_before_one_backward_are_kept_whole(work, model, inputs):
    capture = work().capture
    total = sum(model(inputs()).square().mean() for _ in range(STEPS))
    assert sum(entry.kind == "root" for entry in capture.tape.whole()) == STEPS
    assert total.requires_grad


@pytest.mark.parametrize("way", ["mean", "average", "inplace", "sum_of_losses"])
def test_chains_do_not_grow_with_the_steps(way, work, model):
    capture = work().capture
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running = torch.zeros(())
    for step in range(STEPS):
        loss = model(torch.randn(3, 4)).square().mean()
        step_of(model, optimizer, loss)
        value = loss.detach()
        if way == "mean":
            running = (running * step + value) / (step + 1)
        elif way == "average":
            running = 0.9 * running + 0.1 * value
        elif way == "inplace":
            running.mul_(0.9).add_(0.1 * value)
        else:
            running = running + value
    assert ancestors(capture) <= 16
    assert len(capture.tape._made) <= 16


def test_many_steps_of_all_sorts_at_once(work):
    """A carried state, an average of the weights and a running loss, all in one, for long."""
    capture = work().capture
    model = nn.Linear(2, 2)
    average = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hidden, running, most = torch.zeros(1, 2), torch.zeros(()), 0
    x = torch.randn(1, 2)
    for _ in range(600):
        hidden = torch.tanh(model(x + hidden.detach()))
        loss = hidden.square().sum()
        step_of(model, optimizer, loss)
        running = 0.99 * running + 0.01 * loss.detach()
        with torch.no_grad():
            for mean, one in zip(average, model.parameters(), strict=True):
                mean.lerp_(one, 0.01)
        most = max(most, len(capture.tape.entries), len(capture.tape._made))
    assert most <= 64
    assert ancestors(capture) <= 64


def test_truncated_backpropagation_through_time(work, inputs):
    capture = work().capture
    cell = nn.RNNCell(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    hidden = torch.zeros(3, 4)
    for _ in range(STEPS):
        hidden = cell(inputs(), hidden.detach())
        hidden = cell(inputs(), hidden)
        step_of(cell, optimizer, hidden.square().mean())
    assert ancestors(capture) <= 8
    assert len(inputs.alive) <= 2


def test_what_outlives_a_step_with_its_graph_can_still_be_run_again(work, inputs):
    """A fake batch, made before the first of two steps, carries gradients into the second."""
    capture = work().capture
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (maker, judge)]
    for _ in range(5):
        fake = maker(inputs())
        step_of(judge, optimizers[1], judge(fake.detach()).square().mean())
        optimizers[0].zero_grad()
        judge(fake).square().mean().backward()
        roots = [entry.function for entry in capture.tape.whole() if entry.kind == "root"]
        assert roots == [maker, judge]
        optimizers[0].step()
    del fake
    assert inputs.alive == []


def test_a_long_evaluation_that_writes_is_not_gone_through_at_every_root(work, model, monkeypatch):
    """What it writes in place is kept, and there is much of it before the next step."""
    capture, visited = work().capture, []
    original = entries.ancestors
    monkeypatch.setattr(entries, "ancestors", lambda kept: visited.append(len(kept)) or original(kept))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer, model(torch.ones(3, 4)).square().mean())
    rounds = 1000
    with torch.no_grad():
        for _ in range(rounds):
            table = torch.zeros(3, 4)
            table[0] = model(torch.ones(3, 4))[0]
    assert len(capture.tape.entries) > rounds // 2
    assert sum(visited) <= 16 * rounds


def test_a_module_made_anew_in_each_step_is_let_go(work):
    worker = work()
    kept = []
    for _ in range(4):
        model = nn.Linear(3, 3)
        kept.append(weakref.ref(model.weight))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    del model, optimizer
    worker.sentinel._optimizer = None
    gc.collect()
    assert [one() is None for one in kept] == [True] * 4


def carry(inputs, model, optimizer, steps, value):
    """Train with a mean that is made anew in each step from the one before; returns each one that there was."""
    seen = []
    for _ in range(steps):
        value = 0.9 * value + 0.1 * inputs().abs().log().sum()
        seen.append(weakref.ref(value))
        optimizer.zero_grad()
        (model(torch.ones(3, 4)) * value).square().mean().backward()
        yield seen
        optimizer.step()


@pytest.mark.parametrize(("most", "there"), [(1 << 20, True), (0, False)])
def test_a_running_value_is_held_until_the_step_is_over_where_it_is_small(most, there, work, inputs, monkeypatch):
    monkeypatch.setattr(carried, "MOST_BYTES", most)
    monkeypatch.setattr(pace, "_SHORT", 0.0)
    work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for seen in carry(inputs, model, optimizer, 6, torch.ones(())):
        alive = [one() is not None for one in seen]
        assert not any(alive[:-2])
        assert alive[-2:-1] in ([], [there])
    gc.collect()
    assert [one() is not None for one in seen] == [False] * 6
    assert inputs.alive == []


def test_what_is_held_of_carried_values_is_bounded(work, model, monkeypatch):
    """Each keeps all of the memory that it is a view of; the newest are kept."""
    monkeypatch.setattr(carried, "MOST_BYTES", 1000)
    work()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step_of(model, optimizer, model(torch.ones(3, 4)).square().mean())
    values, part = [torch.full((25,), 1.0 * number) for number in range(20)], torch.ones(251)[:1]
    was = [weakref.ref(value) for value in (*values, part)]
    step_of(model, optimizer, model(torch.ones(3, 4)).square().mean())
    with torch.no_grad():
        values[:] = [value * 2 for value in values]
        part = part * 2
    gc.collect()
    assert [one() is not None for one in was] == [False] * 10 + [True] * 10 + [False]


def test_no_graph_is_held_with_a_carried_value(work):
    work()
    cell = nn.RNNCell(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    hidden = torch.zeros(3, 4)
    for _ in range(3):
        hidden = cell(torch.ones(3, 4), hidden.detach())
        step_of(cell, optimizer, hidden.square().mean())
    before = weakref.ref(hidden)
    hidden = hidden.detach()
    gc.collect()
    assert before() is None


class Rows(Dataset):
    """Puts its samples together itself, as many do."""

    def __init__(self):
        self.rows = torch.rand(8, 4)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def collate(self, samples):
        return torch.stack(samples)


def test_a_dataset_that_the_script_lets_go_of_is_gone(work, model):
    work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fold():
        rows = Rows()
        for x in DataLoader(rows, batch_size=4, collate_fn=rows.collate):
            step_of(model, optimizer, model(x).square().mean())
        return weakref.ref(rows)

    gone = fold()
    gc.collect()
    assert gone() is None


def test_a_dataset_that_is_a_list_switches_nothing_off(work, model):
    worker = work(on_anomaly="continue")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader([torch.full((4,), math.nan if one == 2 else 1.0) for one in range(4)], batch_size=2):
        step_of(model, optimizer, model(x).square().mean())
    assert worker.looked[0].facts["dataset_index"] == 2
    assert worker.events(ProbeDark) == []
