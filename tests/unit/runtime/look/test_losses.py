"""The roots of backward calls: which of them are losses, which still carry a scale, which were thrown away."""

import math

import torch
from torch import nn

from nandiag.runtime.look.losses import Losses, roots_of


def values(losses):
    return [one.value.item() for one in losses]


def test_a_loss_is_kept_as_it_is():
    losses = Losses()
    loss = torch.tensor(2.0, requires_grad=True)
    losses.seen(loss, 3)
    (one,) = losses.pending
    assert (one.value.item(), one.micro_step, one.exact, one.scaled) == (2.0, 3, True, False)
    assert not one.value.requires_grad


def test_a_single_number_in_any_shape_and_dtype():
    losses = Losses()
    for root in (torch.tensor([[4.0]]), torch.tensor(4.0, dtype=torch.float8_e5m2), torch.tensor([4.0 + 0j]).real):
        losses.seen(root, 0)
    assert values(losses.pending) == [4.0] * 3
    assert all(one.exact for one in losses.pending)


def test_a_root_of_many_numbers_goes_by_its_norm():
    losses = Losses()
    losses.seen(torch.tensor([3.0, 4.0]), 0)
    losses.seen(torch.tensor([3.0, math.nan]), 0)
    assert values(losses.pending)[0] == 5.0
    assert math.isnan(values(losses.pending)[1])
    assert not any(one.exact for one in losses.pending)


def test_what_is_no_number_is_no_loss():
    losses = Losses()
    losses.seen(torch.empty(0), 0)
    losses.seen(torch.tensor(1), 0)
    assert losses.pending == []


def test_the_plain_loss_stands_for_the_scaled_one():
    losses = Losses()
    plain = torch.tensor(2.0)
    scaled = plain * 1e38 * 1e3
    losses.scaled(plain, scaled)
    losses.seen(scaled, 0)
    assert values(losses.pending) == [2.0]
    assert not losses.pending[0].scaled


def test_another_tensor_at_the_same_address_is_not_taken_for_the_scaled_one():
    losses = Losses()
    scaled = torch.tensor(9.0)
    losses.scaled(torch.tensor(2.0), scaled)
    losses._unscaled[id(other := torch.tensor(7.0))] = losses._unscaled.pop(id(scaled))
    losses.seen(other, 0)
    assert values(losses.pending) == [7.0]


def test_dropped_roots_are_set_apart():
    losses = Losses()
    losses.seen(torch.tensor(1.0), 0)
    losses.drop()
    losses.seen(torch.tensor(2.0), 0)
    assert (values(losses.dropped), values(losses.pending)) == ([1.0], [2.0])
    losses.clear()
    assert (losses.dropped, losses.pending) == ([], [])


def test_their_number_is_bounded():
    losses = Losses()
    for _ in range(5000):
        losses.seen(torch.tensor(1.0), 0)
    assert len(losses.pending) == 4096


def test_roots_of_what_backward_may_be_given():
    one = torch.ones(())
    assert roots_of(one) == [one]
    assert len(roots_of((one, one))) == len(roots_of([one, one])) == 2
    assert len(roots_of(iter([one]))) == 1
    assert roots_of(nn.Parameter(one))[0].requires_grad


def test_what_a_compiler_traces_with_is_no_root():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        stand_in = torch.ones(())
    value = torch.ones(())
    assert roots_of((stand_in, value)) == [value]
