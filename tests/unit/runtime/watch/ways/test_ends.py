"""What a run ends on, and what it has passed over, by the way that it went: guards, and losses that it died of."""

import contextlib
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.events import Skipped
from nandiag.runtime.watch.told.ways import follow

TURNS = 8


class Run:
    """Trains on batches; those ``bad`` have a mask without an element, so that their loss is 0/0."""

    def __init__(self, *bad, turns=TURNS):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer, self.bad, self.turns, self.left = torch.optim.SGD(self.net.parameters(), lr=0.01), bad, turns, 0

    def batches(self):
        for turn in range(self.turns):
            yield torch.randn(3, 4), torch.zeros(3, 1) if turn in self.bad else torch.ones(3, 1)

    def loss(self, x, mask):
        return (self.net(x).square() * mask).sum() / mask.sum()

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return True


def by_an_error_that_is_caught(run):
    def check(loss):
        if torch.isnan(loss):
            raise ArithmeticError
        return loss

    for batch in run.batches():
        with contextlib.suppress(ArithmeticError):
            run.update(check(run.loss(*batch)))


def by_an_error_that_drops_gradients(run):
    def check(loss):
        if torch.isnan(loss):
            raise ArithmeticError
        return loss

    for batch in run.batches():
        try:
            run.update(check(run.loss(*batch)))
        except ArithmeticError:
            run.optimizer.zero_grad()


def by_numpy(run):
    for batch in run.batches():
        loss = run.loss(*batch)
        if not np.isnan(loss.detach().numpy()):
            run.update(loss)


def by_comparisons(run):
    for batch in run.batches():
        loss = run.loss(*batch)
        if (loss == loss) & (loss.abs() < 1e6):  # noqa: PLR0124 - NaN is not
            run.update(loss)


def by_the_norm_of_gradients(run):
    for batch in run.batches():
        run.optimizer.zero_grad()
        run.loss(*batch).backward()
        if torch.isfinite(nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)):
            run.optimizer.step()


def by_each_gradient(run):
    for batch in run.batches():
        run.optimizer.zero_grad()
        run.loss(*batch).backward()
        if all(one.grad.isfinite().all() for one in run.net.parameters()):
            run.optimizer.step()


def by_each_gradient_in_a_helper(run):
    def is_well():
        for one in run.net.parameters():  # noqa: SIM110 - as scripts have it
            if torch.isnan(one.grad).any() or torch.isinf(one.grad).any():
                return False
        return True

    for batch in run.batches():
        run.optimizer.zero_grad()
        run.loss(*batch).backward()
        if is_well():
            run.optimizer.step()


def by_what_trains_under_another_name(run):
    updates = {True: run.update, False: id}
    for batch in run.batches():
        loss = run.loss(*batch)
        any(map(updates[bool(torch.isfinite(loss))], [loss]))


@pytest.fixture(autouse=True)
def script_is_all_there_is(monkeypatch):
    monkeypatch.setattr(follow, "BOUNDARIES", {id(ended.__code__)})


GUARDS = (
    by_an_error_that_is_caught, by_numpy, by_comparisons, by_an_error_that_drops_gradients,
    by_the_norm_of_gradients, by_each_gradient, by_each_gradient_in_a_helper, by_what_trains_under_another_name,
)  # fmt: skip


def ended(work, way, *bad):
    worker = work()
    way(Run(*bad))
    worker.sentinel.last.at_exit()
    worker.sentinel.finish()
    return worker


@pytest.mark.parametrize("way", GUARDS)
@pytest.mark.parametrize("bad", [(TURNS - 1,), (2, TURNS - 1), (2, 4, 5)])
def test_a_guard_is_silent_in_the_last_turn_as_in_all_others(work, way, bad):
    worker = ended(work, way, *bad)
    assert worker.harms == []


@pytest.mark.parametrize("way", GUARDS[:3])
def test_what_it_passes_over_is_counted_each_once(work, way):
    worker = ended(work, way, 2, TURNS - 1)
    assert sum(one.in_a_row for one in worker.events(Skipped)) == 2


def counts_bad_ones(run):
    bad = 0
    for batch in run.batches():
        loss = run.loss(*batch)
        if torch.isnan(loss):
            bad += 1
        else:
            bad = 0
            run.update(loss)
        if bad >= 2:
            break


def has_a_flag(run):
    batches, running = run.batches(), True
    while running:
        loss = run.loss(*next(batches))
        running = math.isfinite(loss.item())
        if running:
            run.update(loss)


def asks_in_its_condition(run):
    batches = run.batches()
    loss = run.loss(*next(batches))
    while not torch.isnan(loss):
        run.update(loss)
        loss = run.loss(*next(batches))


def leaves_by_the_answer_of_a_function(run):
    def step(batch):
        loss = run.loss(*batch)
        return bool(torch.isfinite(loss)) and run.update(loss)

    with contextlib.suppress(SystemExit):
        for batch in run.batches():
            if not step(batch):
                raise SystemExit(2)


def forgives_but_once(run):
    for turn, batch in enumerate(run.batches()):
        loss = run.loss(*batch)
        good = bool(torch.isfinite(loss))
        if turn < 3 and not good:
            continue
        if not good:
            break
        run.update(loss)


@pytest.mark.parametrize(
    "way",
    [counts_bad_ones, has_a_flag, asks_in_its_condition, leaves_by_the_answer_of_a_function, forgives_but_once],
)
def test_a_loop_that_is_left_for_its_loss_has_ended_on_it(work, way):
    bad = (1, 4, 5) if way is forgives_but_once else (4, 5)
    worker = ended(work, way, *bad)
    assert [one.what for one in worker.harms] == ["loss"]
    assert worker.looked[-1].outcome == "found"


def trial(run, rate):
    run.optimizer = torch.optim.SGD(run.net.parameters(), lr=rate)
    for batch in run.batches():
        loss = run.loss(*batch)
        if not math.isfinite(loss.item()):
            return None
        run.update(loss)
    return loss.item()


def tries_rates(run):
    for rate in (0.01, 0.1):
        run.bad = (4,) if rate == 0.1 else ()
        if trial(run, rate) is None:
            continue


def with_its_batches(run, rate):
    run.bad = (4,) if rate == 0.1 else ()
    return trial(run, rate)


def tries_rates_in_a_comprehension(run):
    assert {rate: with_its_batches(run, rate) for rate in (0.01, 0.1)}


def tries_rates_by_map(run):
    assert list(map(lambda rate: (rate, with_its_batches(run, rate)), (0.01, 0.1)))  # noqa: C417 - as scripts have it


def tries_rates_by_map_itself(run):
    assert list(map(functools.partial(with_its_batches, run), (0.01, 0.1)))


def trains_twice_by_hand(run):
    assert [with_its_batches(run, 0.01)]
    assert [with_its_batches(run, 0.1)]


def trains_two_at_once(run):
    run.others = [torch.optim.SGD(run.net.parameters(), lr=rate) for rate in (0.01, 0.1)]
    assert [with_its_batches(run, rate) for rate in (0.1,)]


def trains_in_epochs(run):
    for epoch in range(2):
        run.bad = (4,) if epoch == 1 else ()
        for batch in run.batches():
            loss = run.loss(*batch)
            if not math.isfinite(loss.item()):
                break
            run.update(loss)


def gives_up_behind_an_epoch(run):
    run.turns = 10
    for epoch in range(4):
        run.bad, bad = (range(10) if epoch > 1 else ()), 0
        for batch in run.batches():
            loss = run.loss(*batch)
            if not torch.isfinite(loss):
                bad += 1
                continue
            run.update(loss)
        if bad > 5:
            break


def test_an_epoch_of_bad_losses_that_ends_the_run_is_its_end(work):
    assert [one.what for one in ended(work, gives_up_behind_an_epoch).harms] == ["loss"]


@pytest.mark.parametrize(
    "way", [tries_rates, tries_rates_in_a_comprehension, tries_rates_by_map, tries_rates_by_map_itself]
)
def test_a_trial_that_is_given_up_is_one_of_some(work, way):
    assert ended(work, way).harms == []


@pytest.mark.parametrize("way", [trains_twice_by_hand, trains_two_at_once])
def test_a_training_that_is_given_up_is_no_trial(work, way):
    assert [one.what for one in ended(work, way).harms] == ["loss"]


def test_an_epoch_that_is_given_up_is_the_end_of_its_training(work):
    assert [one.what for one in ended(work, trains_in_epochs).harms] == ["loss"]


def evaluates(run):
    for batch in run.batches():
        run.update(run.loss(*batch))
    run.bad = range(TURNS)
    shown = [run.loss(*batch).item() for batch in run.batches()]
    assert all(map(math.isnan, shown))


def evaluates_by_another_loop(run):
    for batch in run.batches():
        run.update(run.loss(*batch))
    run.bad, run.turns = range(40), 40
    for batch in run.batches():
        if math.isnan(run.loss(*batch).item()):
            continue


def evaluates_up_to_the_first(run):
    for batch in run.batches():
        run.update(run.loss(*batch))
    run.bad = (3,)
    for batch in run.batches():
        if torch.isnan(run.loss(*batch)):
            break


@pytest.mark.parametrize("way", [evaluates, evaluates_by_another_loop, evaluates_up_to_the_first])
def test_where_nothing_in_a_loop_trained_it_is_an_evaluation(work, way):
    worker = ended(work, way)
    assert (worker.harms, worker.events(Skipped)) == ([], [])
