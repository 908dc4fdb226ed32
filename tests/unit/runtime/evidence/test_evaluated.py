"""A buffer that an evaluation in training mode has written into: the call has its line, and what it was given."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark


class Loop:
    """Trains for some steps; behind step 3 the model is evaluated on batches of which the last but one is bad."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def train(self, evaluate, steps=6, bad=None):
        for step in range(steps):
            x = torch.randn(5, 4)
            if step == bad:
                x[0, 1] = float("inf")
            loss = self.net(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step == 3:
                evaluate(self)


def batches(bad=38, count=40):
    """Made before training, and let go of one by one."""
    held = [torch.randn(5, 4) for _ in range(count)]
    if bad is not None:
        held[bad][0, 1] = float("nan")
    return held


def evaluates(held):
    @torch.no_grad()
    def evaluate(loop):
        while held:
            loop.net(held.pop(0))  # the evaluation

    return evaluate


@torch.no_grad()
def evaluates_what_it_makes(loop):
    for spread in (1.0, 0.0):
        loop.net(torch.ones(5, 4) * spread / spread)  # the evaluation


@torch.no_grad()
def evaluates_in_two_places(loop):
    held = [torch.full((5, 4), float("nan"))]
    loop.net(torch.randn(5, 4))
    loop.net(held.pop())


def evaluates_in_its_mode(loop):
    loop.net.eval()
    evaluates(batches())(loop)
    loop.net.train()


def told(worker):
    assert worker.events(ProbeDark) == []
    return next(one for one in worker.looked if one.step == 4)


def test_the_call_is_the_nearest_known_where_what_it_was_given_is_gone(work):
    worker = work()
    Loop().train(evaluates(batches()))
    looked = told(worker)
    assert (looked.source, looked.method, looked.inputs[0].name) == ("buffer", "tape", "1.running_mean"), looked
    assert looked.site.source.strip().endswith("# the evaluation")
    assert looked.facts["wrote_by_call"] == [looked.site.file, looked.site.line]


def test_what_it_was_given_is_run_again_where_it_can_be_had(work):
    worker = work()
    Loop().train(evaluates_what_it_makes)
    looked = told(worker)
    assert (looked.source, looked.site.op, looked.method) == ("op", "aten.div.Tensor", "replay"), looked
    assert looked.facts["wrote_by_call"][1] == looked.site.line


def test_of_two_places_none_is_told(work):
    worker = work()
    Loop().train(evaluates_in_two_places)
    assert "wrote_by_call" not in told(worker).facts


@pytest.mark.parametrize("evaluate", [evaluates_in_its_mode, evaluates(batches(bad=None))])
def test_an_evaluation_is_not_blamed_for_what_training_did(work, evaluate):
    worker = work(on_anomaly="continue")
    Loop().train(evaluate, bad=4)
    looked = told(worker)
    assert "wrote_by_call" not in looked.facts, looked


@pytest.mark.parametrize("evaluate", [evaluates_in_its_mode, evaluates(batches(bad=None))])
def test_an_evaluation_that_spoils_nothing_is_no_harm(work, evaluate):
    worker = work()
    Loop().train(evaluate)
    assert (worker.harms, worker.looked) == ([], [])


@torch.no_grad()
def evaluates_and_writes(loop):
    loop.net(torch.randn(5, 4))
    loop.net[1].running_var.div_(torch.zeros(8))


def test_what_the_script_writes_there_itself_is_laid_to_no_call(work):
    worker = work()
    Loop().train(evaluates_and_writes)
    looked = told(worker)
    assert looked.site.op == "aten.div_.Tensor"
    assert "wrote_by_call" not in looked.facts


def test_an_encoder_that_something_is_trained_by_is_told_to_be_used(work):
    """It is meant to be in training mode, as of momentum contrast."""
    worker, held = work(), batches(bad=3, count=6)
    query, key = (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)) for _ in range(2))
    optimizer = torch.optim.SGD(query.parameters(), lr=0.01)
    for _ in range(6):
        x = held.pop(0)
        with torch.no_grad():
            wanted = key(x).nan_to_num()
        loss = (query(x.nan_to_num()) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(one.facts.get("used") is not False for one in worker.looked), worker.looked


class WithLoss(nn.Module):
    """What is trained by calls it, and gives the loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).square().mean()


def passes_over(net, called, bad, steps=12, several=1):
    """Train by ``called``; batches from step ``bad`` on are bad, and their losses passed over; a metric is taken."""
    optimizer, good, done = torch.optim.SGD(net.parameters(), lr=0.01), torch.randn(5, 4), 0
    while done < steps:
        x = torch.randn(5, 4)
        if done == bad and several:
            several -= 1
            x = x / (x[:, :1] - x[:, :1])  # the fault
        loss = called(x)
        with torch.no_grad():
            net(good)  # the metric
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1


@pytest.mark.parametrize("several", [1, 12])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_metric_is_not_blamed_for_a_batch_that_training_passed_over(work, wrapped, several):
    """Also where training calls what the model is a part of, and where its bad calls are no more on the tape."""
    worker = work(on_anomaly="continue")
    net = Loop().net
    called = WithLoss(net) if wrapped else lambda x: net(x).square().mean()
    passes_over(net, called, bad=6, several=several)
    assert worker.events(ProbeDark) == []
    assert worker.looked
    assert all("wrote_by_call" not in one.facts for one in worker.looked), worker.looked
    if several == 1:
        assert worker.looked[0].site.source.strip().endswith("# the fault"), worker.looked[0]


@torch.no_grad()
def re_estimates(loop):
    loop.net[1].reset_running_stats()
    for x in batches(bad=3, count=4):
        loop.net(x)  # the evaluation


def test_statistics_that_are_counted_anew_are_meant_to_be_written(work):
    """As torch.optim.swa_utils.update_bn does: what they were counted of is at fault, not the mode."""
    worker = work()
    Loop().train(re_estimates)
    looked = told(worker)
    assert looked.facts["used"] is True
    assert looked.site.source.strip().endswith("# the evaluation")


class Scaled(nn.Module):
    """Writes its buffer whatever mode it is in."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.ones(4))

    def forward(self, x):
        self.largest.mul_(0.9).add_(x.detach().abs().mean(0), alpha=0.1)
        return x / self.largest


def test_of_what_is_written_in_any_mode_the_mode_is_not_told(work):
    worker, loop = work(), Loop()
    loop.net[1] = nn.Sequential(nn.Linear(8, 4), Scaled(), nn.Linear(4, 8))
    loop.optimizer = torch.optim.SGD(loop.net.parameters(), lr=0.01)
    loop.train(evaluates(batches()))
    looked = told(worker)
    assert (looked.inputs[0].name, looked.facts["by_mode"]) == ("1.1.largest", False)


def _instances():
    return nn.Sequential(nn.Unflatten(1, (4, 2)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), _instances()])
def test_what_torch_writes_in_training_mode_alone_is_written_by_mode(work, layer):
    worker, loop = work(), Loop()
    loop.net[1] = layer
    loop.train(evaluates(batches()))
    assert told(worker).facts["by_mode"] is True


@torch.no_grad()
def evaluates_behind_a_write(loop):
    loop.net[1].running_mean.numpy()[:] = float("nan")
    loop.net(torch.ones(5, 4))


def test_what_was_bad_before_the_call_is_not_laid_to_it(work):
    """The script writes by way of numpy, which no call of torch shows."""
    worker = work()
    Loop().train(evaluates_behind_a_write)
    assert "wrote_by_call" not in told(worker).facts


class Fitted(nn.Module):
    """Subtracts what the script fits now and then, and writes nothing itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        return x - self.mean


def fills_with_nan(loop):
    for value in (0.0, float("nan")):
        loop.net[1].mean.fill_(value)
        with torch.no_grad():
            loop.net(torch.ones(5, 4))


def test_a_number_that_is_laid_and_is_bad_begins_no_count(work):
    worker, loop = work(), Loop()
    loop.net[1] = Fitted()
    loop.train(fills_with_nan)
    assert "wrote_by_call" not in told(worker).facts
