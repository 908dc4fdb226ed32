"""A backward that torch's own NaN check (anomaly mode) ended: without the check it runs again, to its end."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn


@pytest.fixture(autouse=True)
def checked():
    with torch.autograd.detect_anomaly():
        yield


def train(model, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y = torch.randn(3, 2), torch.zeros(3, 2)
        given = model(x)
        target = given.detach() if step == 3 else y
        distance = (given - target).square().sum(1)
        loss = torch.sqrt(distance).mean()  # of zeros
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ended(worker, model):
    with pytest.raises(RuntimeError, match="returned nan values") as raised:
        train(model)
    worker.sentinel.last.take(raised.value)
    return worker.looked[-1]


def told(worker, looked):
    assert looked.outcome == "found", looked
    assert (looked.method, looked.step, looked.site.forward_op) == ("replay", 3, "aten.sqrt.default")
    assert looked.site.source.strip().endswith("# of zeros")
    assert [(one.what, one.step, one.phase) for one in worker.harms] == [("gradient", 3, "backward")]
    assert torch.is_anomaly_enabled()
    assert torch.is_anomaly_check_nan_enabled()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gradient_that_the_check_stopped_at_is_told_by_the_op_that_made_it(work):
    worker = work()
    told(worker, ended(worker, nn.Linear(2, 2)))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_backward_of_ddp_that_broke_off_calls_no_other_rank(work, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        worker = work()
        told(worker, ended(worker, nn.parallel.DistributedDataParallel(nn.Linear(2, 2))))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_error_in_a_backward_is_no_harm(work):
    worker = work()

    def fails(gradient):
        raise RuntimeError("of the script's own")

    model = nn.Linear(2, 2)
    model.weight.register_hook(fails)
    with pytest.raises(RuntimeError, match="own") as raised:
        train(model)
    worker.sentinel.last.take(raised.value)
    assert (worker.harms, worker.looked) == ([], [])


def scaled(model, overflows):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(5):
        with torch.autocast("cpu", torch.float16):
            given = model(torch.randn(3, 2))
            loss = (torch.softmax(given, -1) * given).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**24 if step == overflows else None)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("overflows", [0, 2])
def test_an_overflow_that_a_scaler_would_leave_out_is_told_by_its_op_and_the_scale(work, overflows):
    """Its scale is looked for, and the check makes an error of it before the scaler can leave it out."""
    worker, model = work(), nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="returned nan values") as raised:
        scaled(model, overflows)
    worker.sentinel.last.take(raised.value)
    looked = worker.looked[-1]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", overflows + 1), looked
    assert (looked.facts["scale_alone"], looked.facts["script_ended"]) == (2.0**24, True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def of_zeros(model):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(5):
        with torch.autocast("cpu", torch.float16):
            given = model(torch.randn(3, 2)).float()
        target = given.detach() if step == 3 else torch.zeros(3, 2)
        loss = torch.sqrt((given - target).square().sum(1)).mean()  # of zeros
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_fault_under_a_scaler_is_told_by_the_op_that_made_it(work):
    worker = work()
    with pytest.raises(RuntimeError, match="returned nan values") as raised:
        of_zeros(nn.Linear(2, 2))
    worker.sentinel.last.take(raised.value)
    told(worker, worker.looked[-1])


class Masked(nn.Module):
    """The root of what a relu made 0: its gradient is 0 * inf there, and the relu takes none of it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x).relu().sqrt()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("complete", [True, False])
def test_a_step_that_is_finite_without_the_check_is_told_as_that(work, monkeypatch, complete):
    worker, model = work(), Masked()
    nn.init.constant_(model.inner.bias, -9.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = (0.0 * model(torch.ones(3, 2))).sum()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="returned nan values") as raised:
        loss.backward()
    if not complete:  # so that nothing is known of the rest of the step
        examine = worker.sentinel.looker.examine
        monkeypatch.setattr(worker.sentinel.looker, "examine", lambda case: replace(examine(case), facts={}))
    worker.sentinel.last.take(raised.value)
    assert [(one.outcome, one.facts.get("unchecked")) for one in worker.looked] == [("finite", True)] * complete
    assert worker.harms == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_where_ops_are_watched_the_one_that_made_it_is_told(work):
    worker = work(level="op")
    looked = ended(worker, nn.Linear(2, 2))
    assert (looked.method, looked.step, looked.site.forward_op) == ("watch", 3, "aten.sqrt.default"), looked
    assert [(one.what, one.step, one.phase) for one in worker.harms] == [("gradient", 3, "backward")]
