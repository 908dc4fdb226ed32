"""A learning rate that the script reads off a tensor: the line that made it bad is that of the update it spoilt."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def by_hand(optimizer, layer, loss):
    square = sum(one.grad.square().sum() for one in layer.parameters())
    rate = (loss.detach() / square).clamp(max=0.1)
    optimizer.param_groups[0]["lr"] = rate.item()


def by_float(optimizer, layer, loss):
    del loss
    optimizer.param_groups[0]["lr"] = 0.01 * float(layer.weight.detach().norm() / layer.weight.grad.norm())


def trained(sets_rate, factors):
    """Train a layer, its loss multiplied by one of ``factors`` in each step; returns it."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for factor in factors:
        loss = layer(torch.rand(4, 3)).square().mean() * factor
        optimizer.zero_grad()
        loss.backward()
        sets_rate(optimizer, layer, loss)
        optimizer.step()
    return layer


LINES = {
    by_hand: "rate = (loss.detach() / square).clamp(max=0.1)",
    by_float: 'optimizer.param_groups[0]["lr"] = 0.01 * float(layer.weight.detach().norm() / layer.weight.grad.norm())',
}


@pytest.mark.parametrize(("sets_rate", "line"), list(LINES.items()))
def test_the_line_that_made_the_rate_is_named(work, sets_rate, line):
    worker = work()
    trained(sets_rate, (1.0, 1.0, 1.0, 0.0))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "optimizer", 3), looked
    assert (looked.site.source.strip(), looked.site.op) == (line, "aten.div.Tensor")
    assert looked.facts["number"] is True
    assert looked.facts["parameters"] == ["weight", "bias"]


def test_a_schedule_is_looked_into_where_the_rest_of_the_loop_is_too_long(work):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1.0 / torch.tensor(4.0 - step)).abs().item())
    for step in range(6):
        loss = layer(torch.rand(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        worker.capture.narrow = step > 0
        optimizer.step()
        schedule.step()
        assert not (worker.capture.narrow and worker.capture.window.on)
    looked = worker.looked[0]
    assert (looked.site.op, looked.step) == ("aten.reciprocal.default", 4), looked
    assert "lambda step" in looked.site.source


def test_numbers_that_are_read_and_mean_nothing_are_kept_for_their_step_alone(work):
    worker = work()

    def reads(optimizer, layer, loss):
        del optimizer, layer
        assert [float(loss.detach() * torch.nan) for _ in range(20)]

    trained(reads, (1.0, 1.0))
    assert not worker.looked
    assert not worker.capture.window.numbers


def test_an_evaluation_that_reads_bad_numbers_holds_none_of_its_batches(work):
    worker = work()
    layer = nn.Linear(1 << 16, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 1 << 16)).sum().backward()
    optimizer.step()
    gone = []
    with torch.no_grad():
        for _ in range(12):
            batch = torch.ones(8, 1 << 16)
            assert (batch.sum() * torch.nan).item() != 0
            gone.append(weakref.ref(batch))
            del batch
    assert [one() for one in gone] == [None] * 12
    few = torch.ones(3)
    assert all((few.sum() * torch.nan).item() != 0 for _ in range(12))
    assert 0 < len(worker.capture.window.numbers) <= 8


@pytest.mark.parametrize("sets_rate", list(LINES))
def test_the_look_before_the_update_leaves_no_trace(work, sets_rate):
    def mended(optimizer, layer, loss):
        sets_rate(optimizer, layer, loss)
        optimizer.step()  # with the bad rate
        with torch.no_grad():
            for one in layer.parameters():
                one.nan_to_num_(0.5, 0.5, 0.5)
        optimizer.param_groups[0]["lr"] = 0.1

    factors = (1.0, 1.0, 0.0, 1.0, 1.0)
    plain = list(trained(mended, factors).parameters())
    worker = work(on_anomaly="continue")
    seen = list(trained(mended, factors).parameters())
    assert worker.looked
    assert all(bool(one.isfinite().all()) for one in plain)
    assert all(map(torch.equal, plain, seen))


class Talkative(nn.Linear):
    """As a model that communicates in its forward: it cannot be called again on one rank alone."""

    def forward(self, x):
        if any(type(mode).__name__ == "Tracer" for mode in _get_current_dispatch_mode_stack()):
            raise RuntimeError("a collective that only this rank calls")
        return super().forward(x)


def by_the_newest_losses(losses, step):
    recent = torch.stack(losses[-3:])
    if step == 4:
        recent = torch.full_like(recent, 2.0)
    return ((recent[0] - recent.mean()) / recent.std()).clamp(0, 0.01)  # of equal losses


def test_the_line_is_named_also_where_the_model_cannot_be_called_again(work):
    worker = work()
    torch.manual_seed(0)
    layer = Talkative(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        loss = layer(torch.rand(4, 3)).square().mean()
        losses.append(loss.detach())
        if step > 2:
            optimizer.param_groups[0]["lr"] = by_the_newest_losses(losses, step).item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor"), looked
    assert looked.site.source.endswith("# of equal losses")
    assert looked.facts["number"] is True


def test_what_was_written_into_since_is_not_run_again_without_the_model(work):
    worker = work()
    torch.manual_seed(0)
    layer = Talkative(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(3):
        loss = layer(torch.rand(4, 3)).square().mean()
        kept = loss.detach().clone()
        share = kept / kept
        kept.zero_()
        rate = share.log() if step < 2 else share.sub(2).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.01 + rate.item()
        optimizer.step()
    looked = worker.looked[0]
    assert looked.facts.get("number") is None or looked.site.op == "aten.log.default", looked


@pytest.fixture
def looks(work, monkeypatch):
    """Count the looks at how a rate was made that run a model again."""
    examiner, found = work(on_anomaly="continue").sentinel.looker.examiner, []
    look = examiner.examine_handed
    monkeypatch.setattr(
        examiner, "examine_handed", lambda case, then=None: found.extend([case][case.apart :]) or look(case, then)
    )
    return found


def test_a_bad_rate_of_weights_that_nobody_trains_is_not_looked_into(looks):
    layer, idle = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([{"params": layer.parameters()}, {"params": idle.parameters()}], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        layer(torch.rand(4, 3)).square().mean().backward()
        optimizer.param_groups[1]["lr"] = (torch.ones(2) / torch.zeros(2)).max().item()
        optimizer.step()
    assert looks == []


def test_a_rate_that_stays_bad_is_looked_into_a_few_times_at_most(looks):
    trained(by_hand, (1.0, *[0.0] * 12))
    assert 0 < len(looks) <= 3


def by_tensor(write):
    """Train with a rate that is a tensor, into which ``write(rate, step)`` writes before each update."""
    torch.manual_seed(0)
    layer, rate = nn.Linear(3, 2), torch.tensor(0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    for step in range(4):
        optimizer.zero_grad()
        layer(torch.rand(4, 3)).square().mean().backward()
        write(rate, step)
        optimizer.step()


def test_what_is_written_into_a_rate_that_is_a_tensor_has_its_line(work):
    worker = work(on_anomaly="continue")
    by_tensor(lambda rate, step: rate.copy_(0.1 / (3 - torch.tensor(float(step)))))  # the line
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "optimizer", 3), looked
    assert looked.site.op == "aten.reciprocal.default"
    assert looked.site.source.rstrip().endswith("# the line")
    assert (looked.facts["number"], looked.facts["parameters"]) == (True, ["weight", "bias"])


def test_an_infinity_below_zero_in_a_rate_is_no_mask(work):
    worker = work(on_anomaly="continue")
    by_tensor(lambda rate, step: rate.copy_(0.1 + 0.1 * torch.log(torch.tensor((3.0 - step) / 3))))  # the line
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase, looked.step) == ("found", "op", "optimizer", 3), looked
    assert looked.site.op == "aten.log.default"
    assert looked.site.source.rstrip().endswith("# the line")


def test_an_update_by_a_bad_rate_that_nobody_saw_written_is_not_called_finite(work):
    worker = work(on_anomaly="continue")

    def write(rate, step):
        rate.numpy()[...] = 0.1 if step < 3 else float("nan")

    by_tensor(write)
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase) == ("refused", "optimizer"), looked
    assert "rate" in looked.reason
