"""``p.data = value``: weights that a step gives other memory have it again where the step is run again."""

import pytest
import torch
from torch import nn


def back_by_data(weight, old):
    weight.data = old


def back_by_copy(weight, old):
    weight.data.copy_(old)


def kept(weight):
    return weight.data


def copied(weight):
    return weight.data.clone()


def ascend(model, keep):
    """Go up by the length of the gradient, as sharpness-aware minimisation does; returns what the weights were."""
    norm = torch.sqrt(sum(one.grad.square().sum() for one in model.parameters()))
    old = [keep(one) for one in model.parameters()]
    for one in model.parameters():
        one.data = one.data + 0.05 * one.grad / norm  # the line
    return old


def train(model, keep, back, bad=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(bad + 3):
        inputs, least = torch.randn(4, model.in_features), 50.0 if step == bad else 0.0
        optimizer.zero_grad()
        torch.relu(model(inputs).abs() - least).mean().backward()
        old = ascend(model, keep)
        optimizer.zero_grad()
        model(inputs).abs().mean().backward()
        for weight, value in zip(model.parameters(), old, strict=True):
            back(weight, value)
        optimizer.step()


def test_weights_that_were_written_in_place_before_do_not_begin_with_that(work):
    """What they had before they were given back their own memory was spoilt by then."""
    worker, model = work(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        inputs = torch.randn(4, 3)
        optimizer.zero_grad()
        torch.relu(model(inputs).abs() - (50.0 if step == 3 else 0.0)).mean().backward()
        norm = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
        old = [copied(one) for one in model.parameters()]
        with torch.no_grad():
            for one in model.parameters():
                one.add_(0.05 * one.grad / norm)  # the line
        optimizer.zero_grad()
        model(inputs).abs().mean().backward()
        for one, value in zip(model.parameters(), old, strict=True):
            one.data = value
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", 3), looked
    assert looked.site.source.rstrip().endswith("# the line")


@pytest.mark.parametrize(("keep", "back"), [(kept, back_by_data), (copied, back_by_copy)])
def test_what_the_weights_were_moved_by_within_the_step_has_its_line(work, keep, back):
    worker, model = work(), nn.Linear(3, 2)
    train(model, keep, back)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 3), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert (looked.site.op, looked.phase) == ("aten.div.Tensor", "optimizer")


def test_weights_are_as_they_were_behind_a_replay(work):
    finals = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        first = model.weight.data_ptr()
        if watched:
            worker = work(on_anomaly="continue")
        train(model, kept, back_by_data)
        finals.append([one.detach().clone() for one in model.parameters()])
        assert model.weight.data_ptr() == first
    assert worker.looked[0].outcome == "found"
    for one, other in zip(*finals, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_of_weights_that_are_too_large_to_keep_it_is_said_that_the_step_was_not_as_it_had_been(work):
    worker, model = work(), nn.Linear(200, 100)
    train(model, kept, back_by_data)
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"]) == ("finite", False), looked
    assert "other memory" in looked.reason


def test_weights_that_an_evaluation_stood_in_for_are_the_trained_ones_again(work):
    """The average has other numbers, on which the loss would be finite."""
    worker, model, average = work(), nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(5):
        trained = model.weight.data
        model.weight.data = average
        model(torch.ones(1, 2)).detach()
        model.weight.data = trained
        optimizer.zero_grad()
        output = model(torch.ones(3, 2))
        loss = (output / output.abs().max()).sum() if step == 3 else output.sum()  # of zeros
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", 3), looked
    assert looked.site.op == "aten.div.Tensor"


def test_what_an_op_was_given_of_a_weight_is_told_as_it_was_when_the_op_ran(work):
    """Rounded for the forward alone: by the time that it is told of, the weight has its own numbers again."""
    worker, model = work(), nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, 0.7, 0.8, 0.9]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(4):
        full = model.weight.data
        model.weight.data = torch.round(full) if step == 2 else full.clone()
        loss = (model(torch.ones(1, 4)) + model.weight.log().sum()).mean()
        optimizer.zero_grad()
        loss.backward()
        model.weight.data = full
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.site.op, looked.step) == ("aten.log.default", 2), looked
    assert (looked.inputs[0].zeros, looked.inputs[0].max) == (1, 1.0)
    assert "float64_finite" not in looked.facts or looked.facts["float64_finite"] is not True


def by_new_memory(weight, change):
    weight.data = weight.data + change


def in_place(weight, change):
    with torch.no_grad():
        weight.add_(change)


@pytest.mark.parametrize("change", [by_new_memory, in_place])
def test_a_first_pass_that_made_the_gradients_bad_has_its_line(work, change):
    """The weights were moved by these gradients, which were dropped since."""
    worker, model = work(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        inputs = torch.randn(4, 3)
        output = model(inputs) * (torch.tensor([[0.0], [1.0], [1.0], [1.0]]) if step == 3 else 1.0)
        optimizer.zero_grad()
        output.square().sum(1).sqrt().mean().backward()  # of zeros
        norm = torch.stack([one.grad.norm() for one in model.parameters()]).norm()
        changes = [0.05 * one.grad / (norm + 1e-12) for one in model.parameters()]
        for one, by in zip(model.parameters(), changes, strict=True):
            change(one, by)
        optimizer.zero_grad()
        model(inputs).square().sum(1).sqrt().mean().backward()
        for one, by in zip(model.parameters(), changes, strict=True):
            change(one, -by)
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.step, looked.site.forward_op) == (3, "aten.sqrt.default"), looked
    assert looked.site.source.rstrip().endswith("# of zeros")
