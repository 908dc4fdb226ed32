"""Memory that is filled bit by bit: who handed it out, where some of it was never written."""

import inspect
import time

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.births.known import UNWRITTEN
from nandiag.runtime.births.record import CREDIT
from tests.unit.runtime.births.told import found


class Memory:
    """Rows are put in one by one, before training and in it; what is drawn is drawn of all of them."""

    def __init__(self, rows):
        self.rows = torch.empty(rows, 4)  # handed out
        self.next = 0

    def put(self, row):
        self.rows[self.next] = row
        self.next += 1

    def put_by_view(self, row):
        self.rows[self.next].copy_(row)
        self.next += 1


@pytest.fixture
def filled():
    """Torch fills what it hands out with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def draws(memory, steps=6, put="put", whole_at=3, laid=torch.rand):
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        getattr(memory, put)(laid(4))
        x = memory.rows[torch.arange(len(memory.rows)) if step == whole_at else torch.arange(4)]
        loss = layer(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("put", ["put", "put_by_view"])
def test_memory_that_is_filled_bit_by_bit_leads_to_who_handed_it_out(work, filled, put):
    worker = work()
    memory = Memory(20)
    for _ in range(8):
        memory.put(torch.rand(4))
    draws(memory, put=put)
    look = found(worker)
    assert (look.facts["birth"], look.step) == (UNWRITTEN, 3)
    assert look.site.source.endswith("# handed out")


def test_a_bad_row_that_is_put_into_it_in_training_is_not_said_to_be_left(work, filled):
    worker = work()
    memory = Memory(20)
    for _ in range(8):
        memory.put(torch.rand(4))
    bad = iter([torch.rand(4), torch.rand(4), torch.full((4,), torch.nan), torch.rand(4)])
    draws(memory, steps=4, laid=lambda _: next(bad))
    assert found(worker).facts.get("birth") != UNWRITTEN


def test_what_was_given_to_numpy_may_have_been_written_there(work, filled):
    worker = work()
    memory = Memory(12)
    for _ in range(4):
        memory.put(torch.rand(4))
    memory.rows.numpy()[4:] = float("nan")
    draws(memory, steps=4)
    assert found(worker).facts["exposed"] is True


def test_a_row_that_is_chosen_to_be_written_is_no_use_of_the_rest(work, filled):
    worker = work()
    layer, bank = nn.Linear(4, 3), torch.empty(6, 3)  # handed out
    with torch.no_grad():
        for row in range(3):
            bank[row] = layer(torch.rand(4))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    (layer(torch.rand(2, 4)) @ bank.T).mean().backward()
    optimizer.step()
    look = found(worker)
    assert look.facts["birth"] == UNWRITTEN
    assert look.facts["first_used_by"] == "aten.mm.default"
    assert look.site.source.endswith("# handed out")


def test_very_many_tensors_of_numpys_memory_take_no_more_than_their_share(work):
    births = work().capture.births
    array = np.ones(4, dtype=np.float32)
    bare = inspect.unwrap(torch.from_numpy)
    looked = []
    births.record.saw = lambda *one: looked.append(one)
    began = births.record._began
    for _ in range(20_000):
        torch.from_numpy(array)
    passed = time.perf_counter() - began  # also while another process had the processor
    assert bare is not torch.from_numpy
    assert births.prelude.on
    assert 0 < len(looked) < 10_000
    assert births.record.spent <= CREDIT + 0.02 * passed + 0.02


def test_memory_of_numpys_that_torch_takes_has_the_line_where_it_does(work):
    births = work().capture.births
    bad = torch.from_numpy(np.array([1.0, np.nan], dtype=np.float32))
    found = births.of(bad)
    assert (found.how, found.call.name) == ("outside", "from_numpy")
