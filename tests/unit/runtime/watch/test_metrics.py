"""A number that goes through the model and is only read is a metric: no loss that the script rejects (worker)."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import Skipped
from tests.unit.runtime.watch import elsewhere
from tests.unit.runtime.watch.test_left_out import Loop


class Padded:
    """Trains on targets with missing values by a masked loss, and reads a naive one beside it."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.best, self.said = math.inf, []

    def batch(self):
        target = torch.rand(5, 3)
        target[1, 0] = math.nan
        return torch.rand(5, 4), target

    def update(self, x, target):
        known = ~torch.isnan(target)
        out = self.net(x)
        loss = ((out - torch.where(known, target, out.detach())) ** 2).sum() / known.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def reads_it_behind(self, x, target):
        self.update(x, target)
        self.said.append(((self.net(x) - target) ** 2).mean().item())

    def reads_it_before(self, x, target):
        self.said.append(((self.net(x) - target) ** 2).mean().item())
        self.update(x, target)

    def keeps_the_best(self, x, target):
        self.update(x, target)
        naive = ((self.net(x) - target) ** 2).mean().item()
        if naive < self.best:
            self.best = naive
            self.said.append(naive)

    def prints_that_it_is_bad(self, x, target):
        self.update(x, target)
        naive = ((self.net(x) - target) ** 2).mean()
        if torch.isnan(naive):
            self.said.append("no number")


class Meter:
    def __init__(self):
        self.sum = 0.0

    def update(self, value):
        self.sum += float(value)


def gives_it_to_a_meter(self, x, target):
    self.update(x, target)
    naive = ((self.net(x) - target) ** 2).mean()
    if torch.isfinite(naive):
        Meter().update(naive)


def keeps_the_least(self, x, target):
    self.update(x, target)
    naive = ((self.net(x) - target) ** 2).mean().item()
    if not math.isnan(naive):
        self.best = min(self.best, naive, math.inf)


def mean_square(out, target):
    return ((out - target) ** 2).mean()


def has_one_helper_for_both(self, x, target):
    loss = mean_square(self.net(x), torch.rand(5, 3))
    self.optimizer.zero_grad()
    loss.backward()
    self.optimizer.step()
    naive = mean_square(self.net(x), target).item()
    if naive < self.best:
        self.said.append(naive)


WAYS = [
    Padded.reads_it_behind, Padded.reads_it_before, Padded.keeps_the_best, Padded.prints_that_it_is_bad,
    gives_it_to_a_meter, keeps_the_least, has_one_helper_for_both,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_metric_that_is_read_is_told_neither_in_the_loop_nor_at_its_end(work, way):
    worker, loop = work(), Padded()
    for _ in range(4):
        way(loop, *loop.batch())
    worker.sentinel.last.at_exit()
    worker.sentinel.finish()
    assert (worker.events(Skipped), worker.harms, worker.looked) == ([], [], [])


def test_a_loss_that_ends_a_loop_is_told_though_another_line_trained_before(work):
    worker, loop = work(), Padded()

    def second_phase():
        for _ in range(3):
            x, target = loop.batch()
            loss = ((loop.net(x) - target) ** 2).mean()
            if not math.isfinite(loss.item()):
                break
            loss.backward()

    for _ in range(3):
        loop.update(*loop.batch())
    second_phase()
    worker.sentinel.last.at_exit()
    assert [one.what for one in worker.harms] == ["loss"]


def test_a_loss_of_the_last_turn_is_passed_over_without_a_condition_in_sight(work):
    worker, loop = work(), Loop(spoilt=(3,))
    for step in range(4):
        loss = loop.loss(step)
        for _ in [None] * math.isfinite(loss.item()):
            loop.update(loss)
    assert left_out_at_the_end(worker) == (1, False)


class Rejecting:
    """Makes an update of each loss that is finite; ``late`` losses are NaN, to the end."""

    def __init__(self, good, late):
        torch.manual_seed(0)
        self.net, self.turns, self.good, self.skipped = nn.Linear(4, 3), 0, good, 0
        self.optimizer, self.late = torch.optim.SGD(self.net.parameters(), lr=0.01), late

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def loss(self):
        weight = torch.ones(5) * (self.turns < self.good)
        self.turns += 1
        return (self.net(torch.rand(5, 4)).square().mean(1) * weight).sum() / weight.sum()

    def turn(self):
        loss = self.loss()
        for _ in [None] * math.isfinite(loss.item()):
            self.update(loss)

    def guarded(self, loss):
        if torch.isfinite(loss):
            self.update(loss)
        else:
            self.skipped += 1


def told_at_the_end(worker):
    worker.sentinel.last.at_exit()
    return [one.what for one in worker.harms]


def left_out_at_the_end(worker):
    """Return how many losses are told as left out, and whether they were all to the end; as harm none is told."""
    assert told_at_the_end(worker) == []
    told = worker.events(Skipped)
    return sum(one.in_a_row for one in told), told[-1].every


def test_a_line_that_is_called_from_another_one_is_the_same(work):
    """A warm-up and the loop call one method; the losses of the loop are bad to its end."""
    worker, loop = work(), Rejecting(good=3, late=4)
    for _ in range(3):
        loop.turn()
    for _ in range(loop.late):
        loop.turn()
    assert left_out_at_the_end(worker) == (loop.late, True)


def test_a_later_phase_has_lines_of_its_own_that_train(work):
    worker, loop = work(), Rejecting(good=8, late=4)
    for _ in range(6):
        loop.update(loop.net(torch.rand(5, 4)).square().mean())
    for _ in range(loop.good + loop.late):
        loop.turn()
    assert left_out_at_the_end(worker) == (loop.late, True)


def test_a_loss_that_would_be_handed_to_an_update_is_none_that_is_only_read(work):
    """A phase of which no loss was ever finite."""
    worker, loop = work(), Rejecting(good=0, late=4)
    for _ in range(6):
        loop.update(loop.net(torch.rand(5, 4)).square().mean())
    for _ in range(loop.late):
        loop.guarded(loop.loss())
    assert loop.skipped == loop.late
    assert left_out_at_the_end(worker) == (loop.late, True)


class Phased(Rejecting):
    """After a warm-up of another loss its own one trains for a while, between two looks at what trains."""

    def by_a_bound(self, loss):
        if loss.item() < 1e4:
            self.update(loss)

    def by_keyword(self, loss):
        if torch.isfinite(loss):
            self.update(loss=loss)

    def a_part_of_it(self, loss):
        if torch.isfinite(loss):
            self.update(loss * 0.5)

    def by_inequality(self, loss):
        if loss.item() > 1e4 or loss.item() != loss.item():
            self.skipped += 1
        else:
            self.update(loss)


@pytest.mark.parametrize("way", [Phased.by_a_bound, Phased.by_keyword, Phased.a_part_of_it, Phased.by_inequality])
def test_a_phase_between_two_looks_has_lines_that_train(work, way):
    worker, loop = work(), Phased(good=15, late=25)
    for _ in range(34):
        loop.update(loop.net(torch.rand(5, 4)).square().mean())
    for _ in range(loop.good + loop.late):
        way(loop, loop.loss())
    assert left_out_at_the_end(worker) == (loop.late, True)


# ---------------------------------------------------------------------- what a call is


class Tally:
    """Is handed losses by a method that has the name of one that trains, and by ``step``."""

    def __init__(self):
        self.sum = 0.0

    def consume(self, loss):
        self.sum += loss.item()

    def step(self, value):
        self.sum += value


class Dead(Rejecting):
    """A phase of which no loss was ever finite, behind a warm-up that trained."""

    def __init__(self, late=20):
        super().__init__(good=0, late=late)
        self.engine, self.tally = elsewhere.Engine(self.optimizer), Tally()
        self.ways = {"train": self.engine.consume}

    def warm(self):
        for _ in range(6):
            self.engine.consume(self.net(torch.rand(5, 4)).square().mean())

    def by_own_engine(self):
        loss = self.loss()
        if torch.isfinite(loss):
            self.engine.consume(loss)

    def by_table(self):
        loss = self.loss()
        if torch.isfinite(loss):
            self.ways["train"](loss)

    def by_list(self):
        good, loss = [], self.loss()
        for _ in range(1):
            if torch.isfinite(loss):
                good.append(loss)
            if good:
                self.update(sum(good))


def by_an_argument(dead, engine):
    loss = dead.loss()
    if not torch.isnan(loss):
        engine.consume(loss)


DEAD = Dead.by_own_engine, Dead.by_table, Dead.by_list, lambda dead: by_an_argument(dead, dead.engine)


@pytest.mark.parametrize("way", DEAD)
def test_a_phase_that_never_trained_is_told_whatever_calls_its_update(work, way):
    worker, dead = work(), Dead()
    dead.warm()
    for _ in range(dead.late):
        way(dead)
    assert left_out_at_the_end(worker) == (dead.late, True)


def test_few_that_go_to_what_is_not_known_are_not_told(work):
    worker, dead = work(), Dead(late=19)
    dead.warm()
    for _ in range(dead.late):
        by_an_argument(dead, dead.engine)
    worker.sentinel.last.at_exit()
    assert (worker.events(Skipped), worker.harms) == ([], [])


def goes_to_a_tally(loop, tally, x, target):
    loop.update(x, target)
    naive = ((loop.net(x) - target) ** 2).mean()
    if torch.isfinite(naive):
        tally.consume(naive)


def steps_a_tally(loop, tally, x, target):
    loop.update(x, target)
    naive = ((loop.net(x) - target) ** 2).mean()
    if not torch.isnan(naive):
        tally.step(naive.item())


def steps_a_schedule(loop, _, x, target):
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer)
    loop.update(x, target)
    naive = ((loop.net(x) - target) ** 2).mean()
    if math.isfinite(naive.item()):
        sched.step(naive.item())


@pytest.mark.parametrize("way", [goes_to_a_tally, steps_a_tally, steps_a_schedule])
def test_what_is_no_optimizer_makes_no_update_by_the_name_alone(work, way):
    worker, loop, tally = work(), Padded(), Tally()
    for _ in range(24):
        way(loop, tally, *loop.batch())
    worker.sentinel.last.at_exit()
    worker.sentinel.finish()
    assert (worker.events(Skipped), worker.harms, worker.looked) == ([], [], [])


def test_the_next_turn_is_no_way_round_an_update_that_was_made_before(work):
    worker, loop = work(), Padded()
    for _ in range(24):
        x, target = loop.batch()
        loop.update(x, target)
        naive = ((loop.net(x) - target) ** 2).mean().item()
        if math.isnan(naive):
            loop.said.append(naive)
            continue
        loop.best = min(loop.best, naive)
    worker.sentinel.last.at_exit()
    worker.sentinel.finish()
    assert (worker.events(Skipped), worker.harms, worker.looked) == ([], [], [])
