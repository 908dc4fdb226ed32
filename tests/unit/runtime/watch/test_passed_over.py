"""A run whose last batch the script leaves out has left out that batch, and has not ended on it."""

import pytest
import torch
from torch import nn

from nandiag.events import Skipped

STEPS = 6
SEEN = []


def shares(x):
    return x / x.sum(1, keepdim=True)  # of nothing


class Run:
    def __init__(self, *spoilt):
        torch.manual_seed(0)
        self.net, self.spoilt = nn.Linear(4, 1), spoilt
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def losses(self):
        for step in range(STEPS):
            x = torch.zeros(3, 4) if step in self.spoilt else torch.rand(3, 4)
            yield self.net(shares(x)).square().mean()

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def finite(loss):
    flag = torch.isfinite(loss).all()
    return bool(flag)


def usable(loss):
    if torch.isnan(loss):
        SEEN.append(loss.item())
        return False
    return True


def continues(run):
    for loss in run.losses():
        if torch.isnan(loss):
            continue
        run.update(loss)


def makes_its_update_under_the_condition(run):
    for loss in run.losses():
        if torch.isfinite(loss):
            run.optimizer.zero_grad()
            loss.backward()
            run.optimizer.step()


def has_the_answer_by_name(run):
    for loss in run.losses():
        bad = torch.isnan(loss)
        if bad:
            SEEN.append(loss.item())
            continue
        run.update(loss)


def asks_a_function(run):
    for loss in run.losses():
        if not finite(loss.detach()):
            continue
        run.update(loss)


def asks_one_that_returns(run):
    for loss in run.losses():
        if not usable(loss):
            continue
        run.update(loss)


def breaks(run):
    for loss in run.losses():
        if torch.isnan(loss):
            break
        run.update(loss)


def returns(run):
    for loss in run.losses():
        if not finite(loss):
            return
        run.update(loss)


def gives_up(run):
    for number, loss in enumerate(run.losses()):
        if torch.isnan(loss):
            if number > STEPS:
                raise FloatingPointError
            break
        run.update(loss)


GOES_ON = (
    continues, makes_its_update_under_the_condition, has_the_answer_by_name, asks_a_function, asks_one_that_returns,
)  # fmt: skip


@pytest.mark.parametrize("way", GOES_ON)
@pytest.mark.parametrize("spoilt", [(STEPS - 1,), (2, STEPS - 1), (3, 4, 5)])
def test_it_is_told_as_left_out(work, way, spoilt):
    worker = work()
    way(Run(*spoilt))
    worker.sentinel.last.take()
    worker.sentinel.finish()
    told = worker.events(Skipped)
    assert (worker.harms, sum(one.in_a_row for one in told)) == ([], len(spoilt))
    assert told[0].look.site.source.endswith("# of nothing")
    assert told[-1].last is (len(spoilt) == 3)


@pytest.mark.parametrize("way", [breaks, returns, gives_up])
def test_what_leaves_the_loop_has_ended_on_it(work, way):
    worker = work()
    way(Run(3))
    worker.sentinel.last.take()
    assert [one.what for one in worker.harms] == ["loss"]
    assert worker.looked[0].site.source.endswith("# of nothing")


@pytest.mark.parametrize("short", [0.0, 60.0])
def test_a_line_whose_answers_change_all_the_time_is_read_at_the_end(work, monkeypatch, short):
    monkeypatch.setattr("nandiag.runtime.watch.told.answers.asked._MOST_TURNS", 0)
    # What short steps did is held as it is; of longer ones the loss is gone with the function that made it.
    monkeypatch.setattr("nandiag.runtime.tape.noted.pace._SHORT", short)
    worker = work()
    continues(Run(2, 5))
    worker.sentinel.last.take()
    worker.sentinel.finish()
    assert worker.harms == []
