"""A table that the loop writes into between steps, from what is gone by then, and that the next step breaks by."""

import pytest
import torch
from torch import nn

BAD = 4


def trained():
    """Train by weights that a table of priorities gives, written behind each update."""
    torch.manual_seed(0)
    model, table = nn.Linear(3, 1), torch.ones(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(BAD + 2):
        places = torch.arange(4) + 4 * (step % 2)
        weights = (table / table.sum())[places] ** -0.4  # the line
        errors = model(torch.randn(4, 3)).squeeze(1)
        loss = (weights * errors.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors = errors.detach() * (step != BAD - 1)
        table[(places + 4) % 8] = errors.abs()


def test_it_is_run_again_on_what_the_table_holds(work):
    worker = work()
    trained()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == ("found", "op", BAD, "data"), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked
    assert looked.site.op == "aten.pow.Tensor_Scalar"


def adversaries(noise, loss_of):
    """Train two in turn; what the maker gave, of the ``noise`` of the step, is used behind the judge's update too."""
    maker, judge = nn.Linear(4, 3), nn.Linear(3, 1)
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (maker, judge))
    for step in range(BAD + 1):
        drawn = noise(step == BAD)
        fake = maker(drawn)
        theirs.zero_grad()
        judge(fake.detach()).square().mean().backward()
        theirs.step()
        ours.zero_grad()
        (judge(fake).square().mean() + loss_of(fake, drawn, step == BAD)).backward()
        ours.step()


def written(by):
    """Return noise that ``by`` has twice the same in, where it is to break."""

    def noise(bad):
        drawn = torch.randn(4, 4)
        if bad:
            by(drawn)
        return drawn

    return noise


def apart(fake, drawn, _):
    """Divide by the distance of what is made of two."""
    one, other = fake.chunk(2)
    first, second = drawn.chunk(2)
    return ((first - second).abs().mean(1) / (one - other).abs().mean(1)).mean()  # the same


TWICE = [
    lambda drawn: drawn.__setitem__(2, drawn[0]),
    lambda drawn: drawn[2:].copy_(drawn[:2]),
    lambda drawn: drawn.fill_(0.5),
]


@pytest.mark.parametrize("by", TWICE)
def test_what_was_written_into_noise_before_the_first_of_two_updates_is_written_again(work, by):
    worker = work()
    adversaries(written(by), apart)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.rstrip().endswith("# the same"), looked


def test_what_breaks_in_the_backward_of_the_part_before_is_found_where_noise_was_written_into(work):
    worker = work()
    adversaries(written(TWICE[0]), lambda fake, *_: (fake[2] - fake[0]).norm().square().sqrt())
    assert (worker.looked[0].outcome, worker.looked[0].phase) == ("found", "backward"), worker.looked


def test_what_lives_on_is_taken_as_it_is_where_it_does_not_come_out_so_again(work):
    """Its noise was written by way of numpy, which no tape sees."""
    worker = work()
    adversaries(written(lambda drawn: drawn.numpy().__setitem__(2, drawn.numpy()[0])), apart)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.rstrip().endswith("# the same"), looked


def by_numpy(drawn):
    """Have the noise be the same twice, unseen."""
    drawn.numpy()[2] = drawn.numpy()[0]


def test_what_breaks_in_the_backward_of_what_weights_of_by_now_make_is_inferred(work):
    """The first of the two updates moves the weights that made what lives on."""
    worker, maker, judge = work(), nn.Linear(4, 3), nn.Linear(3, 1)
    both = torch.optim.SGD([*maker.parameters(), *judge.parameters()], lr=0.1)
    ours = torch.optim.SGD(maker.parameters(), lr=0.1)
    for step in range(BAD + 1):
        fake = maker(written(TWICE[0])(step == BAD))
        both.zero_grad()
        judge(fake.detach()).square().mean().backward()
        maker.weight.grad = torch.ones_like(maker.weight)
        both.step()
        ours.zero_grad()
        (fake[2] - fake[0]).square().sum().sqrt().backward()
        ours.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.facts.get("reconstructed")) == ("found", "backward", True), looked


@pytest.mark.parametrize("by", [by_numpy, lambda drawn: drawn[2:].numpy().__setitem__(0, drawn.numpy()[0])])
def test_what_numpy_wrote_into_within_the_step_is_taken_as_it_is(work, by):
    worker, model = work(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(BAD + 1):
        drawn = written(by)(step == BAD)
        made = model(drawn)
        loss = 1 / (made[2] - made[0]).abs().mean()  # the line
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked


def test_a_finite_run_on_what_could_not_be_compared_is_not_complete(work):
    """What was carried over is gone by the time that it is run again."""
    worker = work()
    maker, judge = nn.Linear(4, 3), nn.Linear(3, 1)
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (maker, judge))
    for step in range(BAD + 1):
        fake = maker(written(by_numpy)(step == BAD))
        theirs.zero_grad()
        judge(fake.detach()).square().mean().backward()
        theirs.step()
        ours.zero_grad()
        loss = judge(fake).mean() + 1 / (fake[2] - fake[0]).abs().mean()
        del fake
        loss.backward()
        ours.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"]) == ("finite", False), looked
