"""Points that an optimizer tries within a step: one that it leaves is no harm, however bad it was there."""

import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from nandiag.events import Skipped
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.watch import closures


class Interval(nn.Module):
    """The likelihood of an interval: where a long step is tried it underflows to 0."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(3, 1)
        self.ls = nn.Parameter(torch.zeros(()))

    def forward(self, x, lo, hi):
        mean, scale = self.f(x).squeeze(1), self.ls.exp()
        normal = torch.distributions.Normal(0.0, 1.0)
        share = normal.cdf((hi - mean) / scale) - normal.cdf((lo - mean) / scale)
        return -share.log().mean()  # the line


def searched(steps=10, bad_in=None):
    """Fit by LBFGS with a line search, whose very first step tries what is infinite; returns losses and weights."""
    torch.manual_seed(0)
    model, losses, tried = Interval(), [], []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
    for step in range(steps):
        x = torch.randn(40, 3)
        low = (x @ torch.tensor([1.0, -0.5, 0.2]) + 0.4 * torch.randn(40)).floor()
        low[7] = 90.0 if step == bad_in else low[7]

        def closure(x=x, low=low):
            optimizer.zero_grad()
            loss = model(x, low, low + 1)
            loss.backward()
            tried.append(loss.item())
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, tried, [one.detach().clone() for one in model.parameters()]


def test_a_point_that_a_line_search_leaves_is_no_harm(work):
    losses, tried, weights = searched()
    assert torch.inf in tried
    assert torch.inf not in losses
    worker = work(on_anomaly="auto")
    assert searched()[:2] == (losses, tried)
    assert all(map(torch.equal, searched()[2], weights))
    worker.sentinel.finish()
    assert not worker.harms
    assert not worker.looked
    assert not worker.events(Skipped)  # the closure reads its loss: none is left out by that


def test_the_harm_of_a_later_step_is_told_with_its_line(work):
    worker = work(on_anomaly="auto")
    with pytest.raises(AnomalyStop):
        searched(bad_in=6)
    assert {harm.step for harm in worker.harms} == {6}
    (looked,) = worker.looked
    assert (looked.outcome, looked.step, looked.site.source.rstrip()[-10:]) == ("found", 6, "# the line")


class Tries(torch.optim.Optimizer):
    """Moves by its gradient, back where ``leaves`` and the loss is bad there; tells of a ``search`` as LBFGS does."""

    def __init__(self, parameters, *, leaves, raises=False, search="own", after=None):
        super().__init__(parameters, {"line_search_fn": search})
        self.leaves, self.raises, self.after = leaves, raises, after

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        first = closure()
        (weight,) = self.param_groups[0]["params"]
        before = weight.clone()
        weight.sub_(weight.grad)
        second = closure()
        if self.after is not None:
            self.after()
        if self.raises and not second.isfinite():
            raise ValueError("no way down")
        if self.leaves and not second.isfinite():
            weight.copy_(before).mul_(0.99)
        elif self.leaves is None:
            weight.sub_(weight.grad)
        return first


def tried(steps=8, hidden=False, optimizer=Tries, through=None, **options):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = optimizer([weight], **options)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            root = (weight - 0.4).sqrt()  # the root
            root = root if through is None else through(root)
            loss = (root + 4 * weight).sum()
            if hidden:
                root.sum().detach() + (4 * weight).sum()
                loss = (root.detach() + 4 * weight).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return weight


def test_what_a_search_of_the_scripts_own_leaves_is_no_harm_and_counts_for_no_replay(work):
    worker = work(on_anomaly="stop")
    left = worker.sentinel.looker.examiner.left
    assert tried(leaves=True).isfinite().all()
    worker.sentinel.finish()
    assert not worker.harms
    assert not worker.looked
    assert worker.sentinel.looker.examiner.left == left


def is_root(looked):
    return (looked.outcome, looked.source, looked.site.source.rstrip()[-10:]) == ("found", "op", "# the root")


@pytest.mark.parametrize("leaves", [False, None])
def test_a_step_that_ends_at_the_bad_point_or_goes_on_from_it_is_harm(leaves, work):
    worker = work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        tried(leaves=leaves)
    assert worker.harms[0].step == 0
    assert is_root(worker.looked[0])


def test_a_search_that_ends_at_a_bad_loss_of_finite_gradients_is_harm(work):
    worker = work(on_anomaly="continue")
    tried(steps=1, leaves=False, hidden=True)
    worker.sentinel.finish()
    assert [(harm.what, harm.step) for harm in worker.harms] == [("loss", 0)]


def test_an_optimizer_that_tells_of_no_search_is_asked_at_each_evaluation_and_its_weights_stay_whole(work):
    """It may go on by the bad gradient: what it does with the weights behind that would come before any stop."""
    worker, weights = work(on_anomaly="stop"), []
    with pytest.raises(AnomalyStop):
        tried(leaves=None, search=None, after=lambda: weights.append("went on"))
    assert weights == []
    assert is_root(worker.looked[0])


def test_a_search_is_not_told_of_by_the_step_of_another_thread(work):
    worker = work(on_anomaly="continue")
    beside = nn.Parameter(torch.tensor([1.0]))
    other = torch.optim.SGD([beside], lr=0.1)

    def train():
        beside.square().sum().backward()
        other.step()

    def at_once():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join(30)

    assert tried(leaves=True, after=at_once).isfinite().all()
    assert not worker.harms


def test_a_step_that_raises_at_the_bad_point_leaves_its_harm_told(work):
    worker = work(on_anomaly="stop")
    with pytest.raises(ValueError, match="no way down"):
        tried(leaves=False, raises=True)
    worker.sentinel.finish()
    assert worker.harms[0].what == "loss"
    assert is_root(worker.looked[0])


def test_a_left_point_that_could_not_be_explained_has_nothing_watched_from_then_on(work):
    worker = work(on_anomaly="continue")
    looker, missed = worker.sentinel.looker, []
    examine = looker.examiner.examine

    def unexplained(case):
        looked = examine(case)
        return replace(looked, outcome="refused", reason="of the test")

    looker.examiner.examine = unexplained
    assert tried(leaves=True, steps=1, after=lambda: missed.append(looker._missed)).isfinite().all()
    assert (missed, looker.live.started) == ([None], False)
    tried(leaves=False, steps=1)
    assert looker.live.started
    worker.sentinel.finish()


def test_a_left_point_that_was_explained_is_not_the_harm_that_is_waited_for(work):
    worker = work(on_anomaly="continue", level="op")
    worker.sentinel.looker._since = 0
    assert tried(leaves=True, steps=1).isfinite().all()
    assert worker.sentinel.looker.seeks
    tried(leaves=False, steps=1)
    assert not worker.sentinel.looker.seeks


class Counted(nn.Module):
    """Keeps what it was given in a buffer, as running statistics do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(1))

    def forward(self, root):
        self.kept.copy_(root.detach())
        return root


def test_a_buffer_that_is_bad_at_a_left_point_stays_so_and_is_harm(work):
    worker, counted = work(on_anomaly="continue"), Counted()
    assert tried(steps=1, leaves=True, through=counted).isfinite().all()
    assert not counted.kept.isfinite().all()
    assert [(harm.what, harm.tensors[0].name) for harm in worker.harms if harm.what == "buffer"] == [("buffer", "kept")]


class TriesMany(torch.optim.Optimizer):
    """Tries each of ``points`` and ends on that of number ``at``."""

    def __init__(self, parameters, points, at):
        super().__init__(parameters, {"line_search_fn": "own"})
        self.points, self.at = points, at

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        first = closure()
        (weight,) = self.param_groups[0]["params"]
        for point in self.points:
            weight.fill_(point)
            closure()
        weight.fill_(self.points[self.at])
        return first


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_step_that_ends_on_one_of_several_bad_points_is_harm(at, work):
    worker = work(on_anomaly="continue")
    tried(steps=1, optimizer=lambda weights: TriesMany(weights, [-1.0, -2.0, -3.0], at))
    assert worker.harms[0].step == 0
    assert is_root(worker.looked[0])


@pytest.fixture
def looks(monkeypatch):
    """Bad points that are left have used up their time: returns in which steps any was looked at since."""
    monkeypatch.setattr(closures, "_FREE", 0)
    steps, original = [], Examiner.examine

    def examine(self, case):
        steps.append(case.step)
        return original(self, case)

    monkeypatch.setattr(Examiner, "examine", examine)
    return steps


def test_points_that_are_left_are_looked_at_for_a_share_of_the_time_only(looks, work):
    worker = work(on_anomaly="stop")
    tried(leaves=True)
    assert looks == [0]
    worker.sentinel.trials._spent = 0.0
    tried(leaves=True, steps=1)
    assert looks == [0, 8]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_where_there_was_no_time_the_point_that_the_step_ends_on_is_looked_at_then(at, looks, work):
    worker = work(on_anomaly="stop")
    worker.sentinel.trials._spent = 1e9
    left = worker.sentinel.looker.examiner.left
    with pytest.raises(AnomalyStop):
        tried(steps=1, optimizer=lambda weights: TriesMany(weights, [-1.0, -2.0, -3.0], at))
    assert is_root(worker.looked[0])
    assert looks == [0]
    assert worker.sentinel.looker.examiner.left == left - 1


def test_a_line_search_that_ends_on_what_it_had_no_time_for_is_told_with_its_line(looks, work):
    worker = work(on_anomaly="stop")
    worker.sentinel.trials._spent = 1e9
    torch.manual_seed(0)
    model = Interval()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=3, line_search_fn="strong_wolfe")
    x, points = torch.randn(40, 3), []

    def closure():
        optimizer.zero_grad()
        points.append(model(x, torch.zeros(40), torch.ones(40)))
        loss = points[-1] if len(points) == 1 else points[-1] * (torch.zeros(()) / 0.0)  # the product
        loss.backward()
        return loss

    with pytest.raises(AnomalyStop):
        optimizer.step(closure)
    assert looks == [0]
    assert worker.harms[0].step == 0
    assert worker.looked[0].site.source.rstrip()[-13:] == "# the product"
