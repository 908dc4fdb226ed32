"""Updates that a script makes by hand: which line is named where a weight went bad by one, and its inputs are gone."""

import contextlib
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop

BAD = 4


def descend(weights):
    with torch.no_grad():
        for one in weights:
            one.sub_(0.1 * one.grad / one.grad.norm())
            one.grad = None


def descend_by_sum(weights):
    for one in weights:
        one.grad = one.grad / 2
    descend(weights)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        h = self.trunk(x).relu()
        return self.first(h), self.second(h)


def descend_at_once(weights):
    with torch.no_grad():
        for one in weights:
            one -= 0.1 * one.grad / one.grad.norm()  # noqa: PLW2901 - as scripts write it
            one.grad = None


def descend_by_memory(weights):
    with torch.no_grad():
        for one in weights:
            one.data = one.data - 0.1 * one.grad / one.grad.norm()
            one.grad = None


def descend_by_parts(weights):
    whole = torch.cat([one.detach().flatten() for one in weights])
    gradient = torch.cat([one.grad.flatten() for one in weights])
    whole = whole - 0.1 * gradient / (gradient - gradient).norm().add(float(gradient[-1] != 0))  # the second head's
    nn.utils.vector_to_parameters(whole, weights)
    for one in weights:
        one.grad = None


def train(update):
    model = Heads()
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 3):
            one, other = model(torch.randn(6, 4))
            loss = (one - 1).square().mean() + float(step != BAD) * (other - 1).square().mean()
            loss.backward()
            update(list(model.parameters()))


@pytest.mark.parametrize("update", [descend, descend_by_sum, descend_at_once, descend_by_memory, descend_by_parts])
def test_the_op_is_named_though_the_gradients_were_dropped(work, update):
    worker = work()
    train(update)
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.phase, looked.step) == ("found", "replay", "optimizer", BAD), looked
    assert looked.site.op == "aten.div.Tensor"
    line = descend if update is descend_by_sum else update
    assert (looked.site.file, looked.site.line) == (__file__, line.__code__.co_firstlineno + 3)
    assert looked.inputs[1].zeros == 1


def test_harm_says_what_the_script_calls_its_model(work):
    worker, net = work(), Heads()
    with contextlib.suppress(AnomalyStop):
        torch.sqrt(net(torch.zeros(6, 4))[0] * 0).sum().backward()
    worker.sentinel.finish()
    assert {harm.names.get("model") for harm in worker.harms} == {"net"}


def test_gradients_are_kept_no_longer_than_the_next_step(work):
    work()
    model, kept = Heads(), []
    for _ in range(3):
        sum(one.square().mean() for one in model(torch.randn(6, 4))).backward()
        kept.append([weakref.ref(weight.grad) for weight in model.parameters()])
        descend(list(model.parameters()))
    gone = [[one() is None for one in step] for step in kept]
    assert all([*gone[0], *gone[1]]), gone
    assert not any(gone[2])


@pytest.mark.parametrize("update", [descend, descend_by_sum])
def test_the_last_write_is_named_where_its_inputs_are_gone(work, update, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.tape.entries._PER_UPDATE", 1 << 40)
    worker = work()
    train(update)
    assert not worker.capture.narrow
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.phase, looked.step) == ("found", "tape", "optimizer", BAD), looked
    assert (looked.site.file, looked.site.line) == (__file__, descend.__code__.co_firstlineno + 3)
    assert "finite when made again" not in looked.reason


def test_the_update_of_an_optimizer_leaves_the_budget_as_it_was(work):
    worker = work()
    assert worker.capture.by_hand
    torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    assert not worker.capture.by_hand


class Ascent(torch.optim.SGD):
    """Sharpness-aware: the weights are moved uphill, and back before they are updated."""

    def up(self):
        with torch.no_grad():
            weights = [one for one in self.param_groups[0]["params"] if one.grad is not None]
            norm = torch.stack([one.grad.norm() for one in weights]).norm()
            self.moved = [(one, one.grad * (0.05 / norm)) for one in weights]
            for one, by in self.moved:
                one.add_(by)
        self.zero_grad()

    def down(self):
        with torch.no_grad():
            for one, by in self.moved:
                one.sub_(by)
        self.step()
        self.zero_grad()


def test_a_move_of_the_weights_between_two_backwards_is_taped_in_short_steps_too(work):
    worker = work()
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    optimizer = Ascent(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 4):
            x, weight = torch.randn(6, 4), float(step != BAD + 2)
            (model(x).square().mean() * weight).backward()
            optimizer.up()
            (model(x).square().mean() * weight).backward()
            optimizer.down()
    assert not worker.capture.narrow
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", BAD + 2), looked
    assert (looked.site.file, looked.site.line) == (__file__, Ascent.up.__code__.co_firstlineno + 4)


def average(teacher, student, count):
    with torch.no_grad():
        correction = 1 - 0.9**count
        for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
            one.mul_(0.9).add_(other, alpha=0.1)
            one.copy_(one / correction)
        count += 1


def test_a_division_that_is_written_into_a_frozen_model_between_steps(work):
    worker = work()
    student, teacher, count = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False), torch.ones(())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 3):
            x = torch.randn(6, 4)
            optimizer.zero_grad()
            (student(x) - teacher(x)).square().mean().backward()
            optimizer.step()
            if step == BAD:
                count.zero_()
            average(teacher, student, count)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD + 1), looked
    assert (looked.site.op, looked.site.file) == ("aten.div.Tensor", __file__)
    assert looked.site.line == average.__code__.co_firstlineno + 5
    assert not looked.inputs[0].bad  # the line writes into what it divides
    assert looked.inputs[1].zeros == 1


def test_a_part_of_a_weight_that_is_scaled_without_gradients_leaves_the_tape_alone(work):
    worker = work()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 2):
            with torch.no_grad():
                model.weight[2:] *= 0.5
            loss = (model(torch.randn(6, 4)) / torch.tensor(float(step != BAD))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert looked.site.op == "aten.div.Tensor"


def add(weights):
    for one in weights:
        one.add_(1.0)


def add_to_data(weights):
    for one in weights:
        one.data = one.data + 0.5
        one.data.add_(0.5)


def add_to_rows(weights):
    for one in weights:
        one[0] += 1.0


def add_to_all(weights):
    torch._foreach_add_(weights, 1.0)


def write_unseen(write, weight):
    with torch.no_grad():
        write([weight])


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("write", [add, add_to_data, add_to_rows, add_to_all])
def test_what_the_loop_wrote_into_weights_before_the_step_is_not_written_twice(work, write, where):
    worker = work()
    gate = nn.Linear(1, 1, bias=False)
    gate.weight.data.zero_()
    optimizer = torch.optim.SGD(gate.parameters(), lr=1e-6)
    with contextlib.suppress(AnomalyStop):
        for _ in range(8):
            if where == "before":
                write_unseen(write, gate.weight)
            loss = torch.sqrt(4.5 - gate(torch.ones(1, 1))).mean()  # 5 is beyond its domain
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if where == "behind":
                write_unseen(write, gate.weight)
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.site.op) == ("found", "replay", "aten.sqrt.default")
    assert looked.step == (4 if where == "before" else 5)
    assert looked.inputs[0].min == pytest.approx(-0.5, abs=1e-3)


def test_what_the_loop_writes_into_weights_between_two_calls_is_written_again(work):
    """A gradient by differences: each call saw what the write before it left, and the last one takes all of it back."""
    worker = work()
    model, far = nn.Linear(1, 1, bias=False), []
    model.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with contextlib.suppress(AnomalyStop):
        for step in range(6):
            size = 1.5 if step == 4 else 0.5
            with torch.no_grad():
                model.weight.add_(size)
                up = torch.sqrt(2.0 - model(torch.ones(1, 1))).mean()  # beyond its domain by far
                model.weight.sub_(2 * size)
                down = torch.sqrt(2.0 - model(torch.ones(1, 1))).mean()
                model.weight.add_(size)
            model.weight.grad = ((up - down) / (2 * size)).reshape(1, 1)
            far.append(up.item())
            optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.sqrt.default")
    assert looked.inputs[0].min == pytest.approx(-0.5, abs=1e-3)


def test_what_a_write_into_the_weights_themselves_made_of_a_row_of_zeros(work):
    """The row is gone, for it was overwritten: numbers of its size would have been well, and zeros break."""
    worker = work()
    table = nn.Embedding(5, 3, padding_idx=0)
    optimizer = torch.optim.SGD(table.parameters(), lr=1e-3)
    with contextlib.suppress(AnomalyStop):
        for step in range(6):
            loss = table(torch.arange(5)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                if step == 3:
                    table.weight.mul_(2.0 / table.weight.norm(dim=1, keepdim=True))  # of a row of zeros
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.source) == ("found", "replay", "op")
    assert looked.site.op in {"aten.mul_.Tensor", "aten.reciprocal.default"}
    assert "row of zeros" in looked.site.source
    assert looked.facts["reconstructed"] is True
