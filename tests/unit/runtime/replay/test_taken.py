"""Numbers that are read in mid-run, by numpy, and taken into torch: bad on arrival, told by the line that took them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.evidence.data import taken
from nandiag.runtime.look.finite import fact

BAD = 4


def by_numpy(rows):
    return torch.from_numpy(rows)  # taken


def as_it_is(rows):
    return torch.as_tensor(rows)  # taken


def as_a_copy(rows):
    return torch.tensor(rows)  # taken


def batches(takes, read):
    for shard in range(3):
        rows = takes(read(shard))
        for start in range(0, len(rows), 4):
            yield rows[start : start + 4]


def read(shard):
    rows = np.arange(24, dtype=np.float32).reshape(8, 3) / 24
    if shard == BAD // 2:
        rows[1, 2] = np.nan
    return rows


def train(rows):
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x in rows:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("takes", [by_numpy, as_it_is, as_a_copy])
def test_a_shard_that_was_bad_when_it_was_read_is_told_by_the_line_that_took_it(work, takes):
    worker = work()
    train(batches(takes, read))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "data", BAD), looked
    assert (looked.site.op, looked.site.function) == ("aten.lift_fresh.default", takes.__name__), looked
    assert looked.outputs[0].nan == 1


def by_buffer(rows):
    return torch.frombuffer(bytearray(rows.tobytes()), dtype=torch.float32).view(rows.shape)  # taken


def silenced(at):
    rows = np.arange(1, 13, dtype=np.float32).reshape(4, 3) / 12
    rows[2, 1] *= at != BAD
    with np.errstate(all="ignore"):
        return np.log(rows)


@pytest.mark.parametrize("takes", [by_numpy, as_it_is, as_a_copy, by_buffer])
def test_a_batch_that_the_model_is_given_as_it_was_taken_is_told_by_the_line_that_took_it(work, takes):
    worker = work()
    train(takes(silenced(at)) for at in range(6))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "data", BAD), looked
    assert (looked.site.op, looked.site.function) == ("aten.lift_fresh.default", takes.__name__), looked
    assert looked.outputs[0].neginf == 1


@pytest.mark.usefixtures("silent")
def test_numpys_own_line_is_nearer_than_the_one_that_took_the_batch(work):
    worker = work()
    train(by_numpy(divided(at)) for at in (0, 0, 0, 2))
    looked = worker.looked[0]
    assert (looked.facts.get("heard"), looked.site.function) == (True, "divided"), looked


def test_a_batch_of_a_loader_has_a_story_of_its_own(work):
    worker = work()
    rows = [silenced(at) for at in range(6)]
    train(torch.utils.data.DataLoader(rows, batch_size=1, collate_fn=lambda samples: torch.from_numpy(samples[0])))
    looked = worker.looked[0]
    assert looked.facts.get("dataset") == "list", looked
    bad = by_numpy(silenced(BAD))
    known = Looked("found", "replay", BAD, 0, source="input", inputs=(fact(bad),))
    assert taken.taken_in(known, [], None, bad).site.function == "by_numpy"
    known = replace(known, facts={"dataset": "Rows"})
    assert taken.taken_in(known, [], None, bad) is known


def test_of_very_much_memory_only_what_was_used_is_looked_at(work, monkeypatch):
    monkeypatch.setattr(taken, "_LARGEST", 8)
    worker = work()
    train(batches(by_numpy, read))
    looked = worker.looked[0]
    assert looked.site.function == "by_numpy", looked
    assert (looked.outputs[0].shape, looked.outputs[0].nan) == ((4, 3), 1), looked


def test_what_a_loop_writes_into_memory_that_it_has_taken_is_told_as_it_came(work):
    worker = work()
    rows = np.ones((4, 3), np.float32)

    def written():
        known = None
        for at in range(6):
            rows[:] = silenced(at)
            known = torch.from_numpy(rows) if at == 2 else known
            yield torch.from_numpy(rows.copy()) if known is None else known

    train(written())
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.step) == ("found", "data", BAD), looked


def divided(shard):
    rows = read(0)
    return rows / (rows.max() * (shard != BAD // 2)) * (1.0 if shard != BAD // 2 else 0.0)


@pytest.mark.usefixtures("silent")
def test_the_line_that_numpy_complains_of_is_nearer(work):
    worker = work()
    train(batches(by_numpy, divided))
    looked = worker.looked[0]
    assert looked.facts.get("heard") is True, looked
    assert looked.site.function == "divided"
