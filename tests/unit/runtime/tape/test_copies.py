"""Buffers are copied side by side before a forward, and come out of it as they were."""

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.packed.copies import Shelves
from nandiag.runtime.tape.state import keep_attributes

MANY = [
    torch.randn(3, 4).t(), torch.tensor(7), torch.tensor(8), torch.randn(()), torch.randn(5, dtype=torch.float64),
    torch.randn(300, 300), torch.zeros(0, 3), torch.tensor([-0.0, float("nan"), float("inf")]), torch.tensor([True]),
]  # fmt: skip


@pytest.mark.parametrize("buffers", [MANY, *([one] for one in MANY)])
def test_a_copy_keeps_the_bits_and_shares_no_memory(buffers):
    buffers = [one.clone(memory_format=torch.preserve_format) for one in buffers]
    before = [one.clone() for one in buffers]
    copies = Shelves(buffers).copies()
    for one in buffers:
        one.logical_not_() if one.dtype is torch.bool else one.fill_(3)
    held = {id(one): value for one, value in copies}
    assert len(held) == len(buffers)
    for one, value in zip(buffers, before, strict=True):
        found = held[id(one)]
        assert (found.shape, found.dtype) == (value.shape, value.dtype)
        assert (
            found.contiguous().view(torch.uint8).equal(value.contiguous().view(torch.uint8))
            if value.dim()
            else (found.item() == value.item())
        )


def test_a_forward_of_many_layers_copies_its_buffers_by_few_calls(work):
    layers = nn.Sequential(*(nn.BatchNorm1d(3) for _ in range(40)))
    capture = work().capture
    layers(torch.randn(4, 3))
    layers(torch.randn(4, 3))
    assert len(capture.tape.entries[-1].buffers._together) == 2  # one copy of floats, one of counts
    assert capture.tape.entries[-1].buffers._alone == []
    assert len([*capture.tape.entries[-1].buffers]) == 120


@pytest.mark.parametrize("way", ["dtype", "shape", "memory"])
def test_a_buffer_that_was_changed_since_they_were_sorted_is_copied_as_it_is(way):
    buffers = [torch.ones(4), torch.full((4,), 2.0)]
    shelves = Shelves(buffers)
    if way == "memory":
        buffers[0].untyped_storage().resize_(0)
    else:
        buffers[0].data = torch.ones(4, dtype=torch.float64) if way == "dtype" else torch.ones(2, 3)
    held = list(shelves.copies())
    assert [value.dtype for _, value in held] == [one.dtype for one, _ in held]
    assert [value.shape for _, value in held] == [one.shape for one, _ in held]
    assert [one.tolist() for one, _ in held] == [one.tolist() for one in buffers[way == "memory" :]]


def test_a_view_into_memory_written_since_is_no_attribute_to_keep():
    module, flat = nn.Module(), nn.Parameter(torch.zeros(4))
    module.plain, module.view = torch.ones(2), flat.split(2)[0]
    with torch.no_grad():
        flat.mul_(2)
    (names,) = keep_attributes([module])
    assert "plain" in names[1]
    assert "view" not in names[1]
