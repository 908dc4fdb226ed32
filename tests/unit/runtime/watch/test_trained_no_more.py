"""A run that passes over each loss to its end has trained no more; one whose evaluation does so has trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from nandiag.events import Skipped, Warned

STEPS, MORE, CLASSES = 5, 24, 40


class Run:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, CLASSES)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.bad_from = STEPS

    def loss(self, step):
        share = torch.ones(3) * (step < self.bad_from)
        return (self.net(torch.rand(3, 4)).square().mean(1) * share).sum() / share.sum()

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def by_truth(run):
    for step in range(STEPS + MORE):
        loss = run.loss(step)
        if torch.isnan(loss):
            continue
        run.update(loss)


def by_number(run):
    for step in range(STEPS + MORE):
        loss = run.loss(step)
        if not loss.item() < 1e4:
            continue
        run.update(loss)


def by_flag_of_all_ranks(run):
    for step in range(STEPS + MORE):
        loss = run.loss(step)
        flag = (~torch.isfinite(loss)).float()
        if flag.item() > 0:
            continue
        run.update(loss)


def from_the_first_on(run):
    run.bad_from = 0
    by_truth(run)


def one_good_in_between(run):
    for step in range(STEPS + MORE):
        loss = run.loss(0 if step == STEPS + MORE // 2 else step)
        if torch.isnan(loss):
            continue
        if step < STEPS:
            run.update(loss)


def one_good_number_in_between(run):
    for step in range(STEPS + MORE):
        loss = run.loss(0 if step == STEPS + MORE // 2 else step)
        if not loss.item() < 1e4:
            continue
        if step < STEPS:
            run.update(loss)


def evaluates_classes(run):
    for _ in range(STEPS):
        run.update(functional.cross_entropy(run.net(torch.rand(8, 4)), torch.arange(8) % 3))
    out, of = run.net(torch.rand(8, 4)), torch.arange(8) % 3
    for number in range(CLASSES):
        run.net(torch.rand(1, 4))
        if torch.isnan(functional.cross_entropy(out[of == number], of[of == number])):
            continue


def evaluates_without_labels(run):
    for step in range(STEPS + MORE):
        run.net.train(step < STEPS)
        loss = run.loss(step)
        if torch.isnan(loss):
            continue
        run.update(loss)


TRAIN_NO_MORE = by_truth, by_number, by_flag_of_all_ranks, from_the_first_on
TRAINED = one_good_in_between, one_good_number_in_between, evaluates_without_labels


def ended(work, way):
    worker = work()
    way(Run())
    worker.sentinel.last.take()
    worker.sentinel.finish()
    return worker.events(Skipped)


@pytest.mark.parametrize("way", TRAIN_NO_MORE)
def test_each_loss_is_passed_over_to_the_end(work, way):
    told = ended(work, way)
    assert (told[-1].last, told[-1].every) == (True, True)
    assert sum(one.in_a_row for one in told) == (MORE if way is not from_the_first_on else STEPS + MORE)


def test_an_evaluation_by_a_loop_of_its_own_is_told_not_at_all(work):
    assert ended(work, evaluates_classes) == []


@pytest.mark.parametrize("way", TRAINED)
def test_a_good_loss_beside_them_or_an_evaluation_has_them_told_alone(work, way):
    told = ended(work, way)
    assert sum(one.in_a_row for one in told) >= MORE - 1
    assert not any(one.every for one in told)


@pytest.mark.parametrize("way", [by_truth, by_number, by_flag_of_all_ranks])
def test_it_is_warned_of_while_it_runs_on(work, way):
    worker = work()
    way(Run())
    (told,) = worker.events(Warned)
    assert (told.slug, told.step) == ("losses_passed_over", STEPS)
    assert (told.facts["losses"] >= 7, told.facts["value"]) == (True, "nan")


def test_a_few_that_are_passed_over_are_not_warned_of(work):
    worker, run = work(), Run()
    for step in range(4 * STEPS):
        loss = run.loss(0 if step % 5 else STEPS)
        if torch.isnan(loss):
            continue
        run.update(loss)
    assert not worker.events(Warned)


class Stepper:
    def __init__(self, run):
        self.run = run

    def __call__(self, loss):
        self.run.update(loss)


def by_an_object(run, bad):
    update = Stepper(run)
    for step in range(STEPS):
        loss = run.loss(STEPS if step in bad else 0)
        if torch.isfinite(loss):
            update(loss)


def by_an_expression(run, bad):
    for step in range(STEPS):
        loss = run.loss(STEPS if step in bad else 0)
        (run.update if torch.isfinite(loss) else id)(loss)


def or_gives_up(run, bad):
    update, lost = Stepper(run), 0
    for step in range(STEPS):
        loss = run.loss(STEPS if step in bad else 0)
        if not torch.isfinite(loss):
            lost += 1
            if lost > 1:
                break
        else:
            update(loss)


@pytest.mark.parametrize("way", [by_an_object, by_an_expression])
def test_what_it_did_before_it_does_with_the_last_one_too(work, way):
    worker = work()
    way(Run(), (1, STEPS - 1))
    worker.sentinel.last.take()
    worker.sentinel.finish()
    assert worker.harms == []
    assert sum(one.in_a_row for one in worker.events(Skipped)) == 2


def test_a_loop_that_is_left_on_the_second_one_has_ended_on_it(work):
    worker = work()
    or_gives_up(Run(), (1, STEPS - 2))
    worker.sentinel.last.take()
    assert [one.what for one in worker.harms] == ["loss"]


def test_the_last_row_is_looked_at_though_single_ones_were_before(work):
    worker, run = work(), Run()
    for step in range(STEPS + MORE):
        loss = run.loss(STEPS if step == 2 else step)
        if torch.isnan(loss):
            continue
        run.update(loss)
    worker.sentinel.last.take()
    worker.sentinel.finish()
    looked = {one.step for one in worker.events(Skipped) if one.look is not None}
    assert looked == {2, STEPS - 1}


def test_losses_of_classes_at_the_end_that_nobody_asked_of_are_an_evaluation(work):
    worker, run = work(), Run()
    for _ in range(STEPS):
        run.update(functional.cross_entropy(run.net(torch.rand(8, 4)), torch.arange(8) % 3))
    out, of = run.net(torch.rand(8, 4)), torch.arange(8) % 3
    table = torch.stack([functional.cross_entropy(out[of == at], of[of == at]) for at in range(4)]).detach()
    assert len(table.tolist()) == 4
    worker.sentinel.last.take()
    assert worker.harms == []
