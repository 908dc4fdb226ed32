"""A gradient that the script has exchanged, and written into last: its exchange is told beside that line."""

import math
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def forward(model, given):
    """Call the model where no replay calls it again: what became of it is taken as it was."""
    found = []
    thread = threading.Thread(target=lambda: found.append(model(given)))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_scripts_own_exchange_of_gradients_is_told_with_the_last_write(work, alone, exchanges):
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        forward(model, torch.ones(4, 3)).square().mean().backward()
        for one in model.parameters():
            if exchanges:
                dist.all_reduce(one.grad)
            else:
                grad_log = torch.ones(1)
                dist.all_reduce(grad_log)  # a number for the log
            if step == 2:
                one.grad.numpy()[:] = math.nan  # as what another rank gave would be, unseen
            one.grad /= 1
        optimizer.step()
    looked = worker.looked[0]
    assert looked.facts["written_in_place"] == "div_", looked
    told = looked.facts.get("exchanged_by")
    assert (told is not None) is exchanges, looked
    assert told is None or (told[0], told[2]) == ("all_reduce", looked.site.line - 6)


def by_flat(model, given):
    """Take the gradients of a call that no replay makes again through an exchange of all of them in one tensor."""
    flat = torch.cat([one.grad.view(-1) for one in model.parameters()])
    dist.all_reduce(flat)
    if given is not None:
        flat.numpy()[:] = given  # as what another rank gave would be, unseen
    flat /= 1
    return flat


def put_back(model, flat):
    begin = 0
    for one in model.parameters():
        one.grad.copy_(flat[begin : begin + one.numel()].view_as(one))
        begin += one.numel()


def assigned(model, flat):
    begin = 0
    for one in model.parameters():
        one.grad = flat[begin : begin + one.numel()].view_as(one)
        begin += one.numel()


@pytest.mark.parametrize("lay", [put_back, assigned])
@pytest.mark.parametrize("again", [True, False])
def test_the_exchange_that_gradients_were_made_of_is_told_and_not_one_for_the_log(work, alone, lay, again):
    """Neither the name of what is exchanged, nor which exchange came last, tells which one carried gradients."""
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        given = torch.ones(4, 3)
        (model(given) if again else forward(model, given)).square().mean().backward()
        lay(model, by_flat(model, math.nan if step == 2 else None))
        grad_log = torch.full((1,), float(step))
        dist.all_reduce(grad_log)
        optimizer.step()
    looked = worker.looked[0]
    lines = by_flat.__code__.co_firstlineno + 3
    if looked.phase == "collective":
        assert (looked.facts["collective"], looked.site.line) == ("all_reduce", lines), looked
    else:
        assert looked.facts.get("exchanged_by", [None])[-1] == lines, looked


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_number_for_the_log_is_no_exchange_of_gradients(work, alone, exchanges):
    worker = work()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        if exchanges:
            grad_loss = loss.detach().clone()
            dist.all_reduce(grad_loss)
        if step == 2:
            model.weight.grad.numpy()[:] = math.nan
        optimizer.step()
    assert "collective" not in worker.looked[0].facts, worker.looked[0]
    assert worker.looked[0].outcome == "finite"
