"""A script that is told of a bad loss behind its update, and gives up what that has made: it goes on without."""

import pytest
import torch
from torch import nn

from nandiag.events import Skipped


def draw():
    net = nn.Linear(3, 1)
    return net, torch.optim.SGD(net.parameters(), lr=0.05)


def given_up(members, number):
    members[number] = draw()


def written_over(members, number):
    members[number][0].reset_parameters()


def set_anew(members, number):
    for one in members[number][0].parameters():
        one.data = torch.randn(one.shape)


def kept(members, number):
    pass


def in_part(members, number):
    with torch.no_grad():
        members[number][0].bias.zero_()


def trained_by_another(members, number):
    net, _ = members[number]
    members[number] = net, torch.optim.SGD(net.parameters(), lr=0.01)


def train(mends, *, asks=True, last=5):
    members = [draw() for _ in range(3)]
    with torch.no_grad():
        members[1][0].bias.fill_(1e30)
    for _ in range(last):
        x = torch.randn(8, 3)
        for number, (net, optimizer) in enumerate(members):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bad = not torch.isfinite(loss) if asks else net.bias.abs().max().item() > 1e9
            if bad:
                mends(members, number)
        del net, optimizer, loss


def told(worker):
    worker.sentinel.finish()
    return [one for one in worker.events(Skipped) if one.of in {"weights drawn anew", "searched point"}]


@pytest.mark.parametrize("mends", [given_up, written_over, set_anew])
def test_what_the_loss_has_made_is_given_up(work, mends):
    worker = work(on_anomaly="auto")
    train(mends)
    (one,) = told(worker)
    assert (one.step, one.in_a_row, one.loss, one.by) == (1, 1, float("inf"), "script")


@pytest.mark.parametrize("mends", [kept, in_part, trained_by_another])
def test_weights_that_are_kept_are_not(work, mends):
    worker = work(on_anomaly="auto")
    train(mends)
    assert not told(worker)
    assert worker.harms


def test_nor_is_it_said_where_the_script_was_not_told_of_the_loss(work):
    worker = work(on_anomaly="auto")
    train(given_up, asks=False)
    assert not told(worker)


def test_nor_where_nothing_was_trained_since(work):
    worker = work(on_anomaly="auto")
    members = [draw()]
    with torch.no_grad():
        members[0][0].bias.fill_(1e30)
    net, optimizer = members[0]
    loss = net(torch.randn(8, 3)).square().mean()
    loss.backward()
    optimizer.step()
    if not torch.isfinite(loss):
        members[0] = draw()
    del net, optimizer, loss
    assert not told(worker)


def search(steps, *, ends=False):
    """A line search whose first step takes a point outside of the domain; ``ends``: the last loss is NaN as well."""
    torch.manual_seed(1)
    t = torch.linspace(0.5, 5, 40)
    obs = 2.0 * torch.log(t + 0.3)
    p = nn.Parameter(torch.tensor([2.0, 0.5]))
    optimizer = torch.optim.LBFGS([p], lr=1.0, line_search_fn="strong_wolfe", max_iter=5)

    last = []

    def closure():
        optimizer.zero_grad()
        loss = ((p[0] * torch.log(t + p[1]) - obs) ** 2).sum() - 0.01 * torch.log(p[1])
        loss = loss + float("nan") if last else loss
        loss.backward()
        return loss

    for step in range(steps):
        last += [step] * (ends and step == steps - 1)
        optimizer.step(closure)


@pytest.mark.parametrize("ends", [False, True])
def test_a_search_that_finds_back_from_a_bad_point_has_given_it_up(work, ends):
    worker = work(on_anomaly="auto")
    search(12, ends=ends)
    assert worker.harms
    assert [one.of for one in told(worker)] == ([] if ends else ["searched point"])
