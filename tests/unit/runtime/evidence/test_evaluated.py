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
