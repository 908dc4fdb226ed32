"""What the script does to its weights behind its last step, where no border follows that would see it."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from nandiag.events import ProbeDark
from nandiag.runtime.tape import state
from nandiag.runtime.watch.told import departed


def trained(steps=3):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    return model, optimizer


@torch.no_grad()
def average(model, seen):
    total = torch.tensor(float(seen))
    for one in model.parameters():
        one.mul_(seen / total)


def told(worker):
    return [(one.what, one.step, one.since) for one in worker.harms]


def test_weights_that_are_spoiled_behind_the_last_update_are_told_with_the_line(work):
    worker = work()
    kept = trained()
    average(kept[0], 0)
    assert worker.sentinel.finish().steps == 3
    assert told(worker) == [("parameter", 3, 2)]
    found = worker.looked[0]
    assert found.outcome == "found", found
    assert found.site.source.strip() == "one.mul_(seen / total)"


def leaves_behind_its_backward():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.ones(2, 4) if step < 3 else torch.zeros(2, 4)
        optimizer.zero_grad()
        loss = model(x / x.norm(dim=1, keepdim=True)).mean()
        loss.backward()
        if not torch.isfinite(loss):
            return
        optimizer.step()


def test_a_function_that_is_left_behind_a_bad_loss_has_its_line_though_its_optimizer_is_gone(work):
    worker = work()
    leaves_behind_its_backward()
    worker.sentinel.last.at_exit()
    assert [(one.what, one.step, one.optimizer) for one in worker.harms] == [("loss", 3, "SGD")]
    assert worker.looked[0].site.op == "aten.div.Tensor"
    assert "x / x.norm(dim=1, keepdim=True)" in worker.looked[0].site.source


def test_weights_that_are_finite_at_the_end_are_not_told(work):
    worker = work()
    kept = trained()
    average(kept[0], 2)
    worker.sentinel.finish()
    assert told(worker) == []
    assert worker.looked == []


def test_a_mask_of_the_scripts_in_its_weights_is_none(work):
    worker = work()
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight[0, 0] = -torch.inf
    optimizer = torch.optim.SGD([model.bias], lr=0.01)
    model.bias.sum().backward()
    optimizer.step()
    worker.sentinel.finish()
    assert [one.what for one in worker.harms if one.step >= 1] == []


def test_the_model_of_a_function_is_looked_at_where_the_process_group_ends(work, tmp_path):
    worker = work()

    def main():
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        model, _optimizer = trained()
        average(model, 0)
        dist.destroy_process_group()

    main()
    worker.sentinel.finish()
    assert told(worker) == [("parameter", 3, 2)]
    assert worker.events(ProbeDark) == []


def test_the_model_of_a_function_is_looked_at_when_the_function_returns(work):
    worker = work()

    def main():
        model, _optimizer = trained()
        average(model, 0)

    main()
    assert told(worker) == [("parameter", 3, 2)]
    found = worker.looked[0]
    assert found.outcome == "found", found
    assert found.site.source.strip() == "one.mul_(seen / total)"
    assert worker.sentinel.finish().steps == 3
    assert len(worker.harms) == 1
    assert worker.events(ProbeDark) == []


def test_nothing_is_looked_at_that_goes_while_a_graph_is_captured(work, monkeypatch):
    worker = work()

    def main():
        model, _optimizer = trained()
        average(model, 0)
        monkeypatch.setattr(state, "_made_up", [1])

    main()
    assert told(worker) == []
    monkeypatch.undo()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_what_fails_when_an_optimizer_goes_is_written_down_and_not_printed(work, monkeypatch):
    worker = work()
    monkeypatch.setattr(departed, "_is_quiet", lambda: 1 / 0)

    def main():
        trained()

    main()
    gc.collect()
    assert [(one.probe, "ZeroDivisionError" in one.reason) for one in worker.events(ProbeDark)] == [("last look", True)]


def test_models_that_go_finite_are_not_told_and_not_kept(work):
    worker = work()

    def fold():
        model, _optimizer = trained()
        average(model, 2)
        return weakref.ref(model.weight)

    kept = [fold() for _ in range(3)]
    assert [one() for one in kept[:2]] == [None, None]  # the last was written into behind its last step
    worker.sentinel.finish()
    assert (told(worker), worker.looked, worker.events(ProbeDark)) == ([], [], [])


def test_harm_that_was_told_before_is_not_told_again_at_the_end(work):
    worker = work(on_anomaly="continue")
    model, optimizer = trained()
    (model(torch.ones(2, 4)) * torch.nan).mean().backward()
    optimizer.step()
    before = told(worker)
    worker.sentinel.finish()
    assert told(worker) == before


@torch.no_grad()
def bans(model):
    model.bias[0] = -torch.inf


def poisons(model):
    for one in model.parameters():
        one.data.fill_(float("nan"))


@pytest.mark.parametrize("writes", [bans, poisons])
def test_a_number_that_the_script_writes_down_behind_its_training_is_meant(work, writes):
    worker = work()
    kept = trained()
    writes(kept[0])
    worker.sentinel.finish()
    assert told(worker) == []
    assert worker.looked == []


def test_what_nobody_saw_written_is_told_as_written_behind_the_last_update(work):
    worker = work()
    kept = trained()
    kept[0].weight.data = torch.from_numpy(np.full((1, 4), np.nan, np.float32))
    worker.sentinel.finish()
    assert [(one.what, one.step, one.behind) for one in worker.harms] == [("parameter", 3, True)]


@pytest.mark.parametrize("rows", [4, 20_000])
def test_a_shard_that_is_written_into_behind_the_last_update_has_its_line(work, tmp_path, rows):
    """A large one held other numbers before, which nobody kept: its last write is all that is known."""
    worker = work()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(4, rows)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            shard = model.weight.to_local()
            shard.div_(torch.zeros(()))  # by a count of 0
    finally:
        dist.destroy_process_group()
    look = worker.looked[-1]
    assert (look.outcome, look.phase, look.method) == ("found", "optimizer", "replay" if rows == 4 else "tape")
    assert look.site.source.endswith("# by a count of 0")


@pytest.mark.parametrize("hangs", [True, False])
def test_a_script_that_leaves_at_once_is_not_kept_waiting_for_a_device_that_hangs(work, monkeypatch, hangs):
    worker = work()
    kept = trained()
    average(kept[0], 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=lambda: not hangs))
    worker.sentinel.last.take_at_once()
    assert bool(told(worker)) is not hangs
