"""Weights that the script exchanges between updates are told at a harm, with the line that does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.early.compared.exchanged import exchanged_between


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def summed(model):
    for one in model.parameters():
        dist.all_reduce(one)


def averaged(model):
    for one in model.parameters():
        dist.all_reduce(one)
        one.data /= dist.get_world_size()


def shared(model):
    flat = torch.cat([one.flatten() for one in model.parameters()])
    flat *= 0.5
    dist.all_reduce(flat)


def shared_before(model):
    scaled = [0.5 * one.flatten() for one in model.parameters()]
    flat = torch.cat(scaled)
    dist.all_reduce(flat)


def shared_within(model):
    for one in model.parameters():
        dist.all_reduce(one * 0.5)


def shared_behind(model):
    for one in model.parameters():
        old = one.clone()
        dist.all_reduce(one)
        one.copy_(old).add_(one, alpha=0.5)


def mixed(model):
    for one in model.parameters():
        old = one.clone()
        dist.all_reduce(old)
        one.lerp_(old, 0.5)


def largest(model):
    for one in model.parameters():
        dist.all_reduce(one, op=dist.ReduceOp.MAX)


def pulling(model):
    mine = torch.cat([one.flatten() for one in model.parameters()])
    centre = torch.zeros_like(mine)
    pull = 0.9 * (mine - centre)
    dist.reduce(pull.clone(), 0)


def pulled(model):
    flat = torch.cat([one.flatten() for one in model.parameters()])
    dist.broadcast(flat, 0)


def handed_on(model):
    for one in model.parameters():
        dist.broadcast(one, 0)


def of_gradients(model):
    for one in model.parameters():
        dist.all_reduce(one.grad)


def of_metric(_):
    total = torch.zeros(1)
    dist.all_reduce(total)


def summed_beside_a_penalty(model):
    penalty = torch.zeros(())
    for one in model.parameters():
        penalty = penalty + 1e-4 * one.square().sum()
    for one in model.parameters():
        one.mul_(0.999)
    for one in model.parameters():
        assert one.is_leaf
        dist.all_reduce(one)  # a sum
    for one in model.parameters():
        assert one.is_leaf
        penalty = penalty + 1e-4 * one.square().sum()


def summed_with_a_norm_before(model):
    flat = torch.cat([one.flatten() for one in model.parameters()])
    penalty = 1e-4 * flat.square().sum()
    assert penalty.isfinite()
    dist.all_reduce(flat)  # a sum


def shared_ahead(model):
    for one in model.parameters():
        one.mul_(0.5)
        assert one.is_leaf
        dist.all_reduce(one)


def shared_in_turn(model):
    scaled = [0.5 * one.flatten() for one in model.parameters()]
    for one in scaled:
        assert one.dim()
        dist.all_reduce(one)


SHARED = [
    shared, shared_before, shared_within, shared_behind, mixed, largest, shared_ahead, shared_in_turn,
]  # fmt: skip


def lines(work, between, behind=lambda _: None):
    work()
    RING.calls.clear()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.ones(4, 3)).sum().backward()
        behind(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            between(model)
    for call in RING.calls:
        if call.group is not None:
            call.group = SimpleNamespace(members=(0, 1))
    return exchanged_between(list(model.parameters()))


def place(text):
    own = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{Path(__file__).name}:{own.index(f'    {text}') + 1}: {text.strip()}"


def test_a_sum_of_weights_is_told_with_its_line(work, alone):
    assert lines(work, summed) == (place("    dist.all_reduce(one)"),)


@pytest.mark.parametrize(
    ("between", "text"),
    [
        (summed_beside_a_penalty, "    dist.all_reduce(one)  # a sum"),
        (summed_with_a_norm_before, "dist.all_reduce(flat)  # a sum"),
    ],
)
def test_a_product_of_the_weights_that_goes_elsewhere_makes_no_mean(work, alone, between, text):
    assert lines(work, between) == (place(text),)


def test_what_is_as_large_as_all_weights_is_told_too(work, alone):
    assert lines(work, pulled) == (place("dist.broadcast(flat, 0)"),)


def test_what_the_ranks_pull_at_one_copy_adds_up_though_each_gives_a_share(work, alone):
    assert lines(work, pulling) == (place("dist.reduce(pull.clone(), 0)"),)


@pytest.mark.parametrize("between", SHARED)
def test_a_weighted_mean_and_the_largest_are_none(work, alone, between):
    assert lines(work, between) == ()


def test_a_sum_comes_before_a_copy(work, alone):
    found = lines(work, lambda model: (summed(model), pulled(model)))
    assert [one.partition(": ")[2] for one in found] == ["dist.all_reduce(one)", "dist.broadcast(flat, 0)"]


@pytest.mark.parametrize("between", [averaged, handed_on, of_metric])
def test_a_mean_and_a_copy_and_a_metric_are_none(work, alone, between):
    assert lines(work, between) == ()


def test_an_exchange_of_gradients_is_none(work, alone):
    assert lines(work, of_metric, of_gradients) == ()


def test_what_one_rank_does_alone_is_none():
    assert exchanged_between([]) == ()
