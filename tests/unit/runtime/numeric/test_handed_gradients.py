"""What numpy writes into the memory of gradients nobody runs again: its complaint is told, and no device blamed."""

import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.numeric.warned import HEARD

BAD = 2


@pytest.fixture(autouse=True)
def nothing_heard():
    HEARD.clear()
    yield
    HEARD.clear()


def train(work, spoil):
    worker = work()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.rand(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for one in model.parameters():
                spoil(one.grad.numpy(), 0.0 if step == BAD else 1.0)
        optimizer.step()
    return worker.looked[0]


def by_norm(gradient, scale):
    gradient *= scale
    gradient /= np.linalg.norm(gradient)


def by_root(gradient, scale):
    np.sqrt(gradient - (0.0 if scale else 1e9), out=gradient) if not scale else None


@pytest.mark.parametrize(("spoil", "line"), [(by_norm, 2), (by_root, 1)])
def test_the_line_that_numpy_complained_of(work, spoil, line):
    found = train(work, spoil)
    assert (found.outcome, found.step, found.phase) == ("found", BAD, "optimizer")
    assert found.facts["heard"] is True
    assert found.site.line == spoil.__code__.co_firstlineno + line


def test_what_numpy_wrote_without_a_word_is_no_fault_that_did_not_show_again(work):
    def spoil(gradient, scale):
        gradient[0] = gradient[0] if scale else np.nan

    found = train(work, spoil)
    assert (found.outcome, found.facts["complete"]) == ("finite", False)
    assert "numpy" in found.reason


def test_numpy_that_only_reads_them_is_not_blamed(work):
    worker = work()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.rand(3, 4)).square().mean()
        loss = (loss - loss.detach()).log() if step == BAD else loss
        optimizer.zero_grad()
        loss.backward()
        with np.errstate(all="ignore"):
            np.log(model.weight.grad.numpy() * 0.0)
        optimizer.step()
    found = worker.looked[0]
    assert found.site.op.startswith("aten.log")


class Damage(torch.autograd.Function):
    """Hands on a gradient, of one call with an amount in it; run again, it has no more to give."""

    amounts: ClassVar = {}

    @staticmethod
    def forward(_ctx, weight):
        return weight.clone()

    @staticmethod
    def backward(_ctx, gradient):
        gradient = gradient.clone()
        gradient[0, 1] += Damage.amounts.pop("next", 0.0)
        return gradient


class Damaging(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Damage.apply(self.weight), self.bias)


def with_a_damaged_gradient(work, reads, amount=float("inf")):
    """Train with a gradient that goes bad where no replay makes it so again; numpy ``reads`` each step's."""
    worker = work()
    model = Damaging(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.rand(8, 4)
        x[:, 0] = 0.0 if step == BAD else x[:, 0]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        Damage.amounts.update({"next": amount} if step == BAD else {})
        loss.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reads(model.weight.grad.numpy())
        optimizer.step()
    return worker.looked[0]


LOGGED = []
LAST = {"logs": np.zeros((1, 4), np.float32), "counts": np.zeros(3)}


def into_a_list(gradient):
    logs = np.log10(np.abs(gradient))
    LOGGED.append(logs)


def into_memory_of_the_scripts_own(gradient):
    np.log10(np.abs(gradient), out=LAST["logs"])


def into_a_part_of_it(gradient):
    LAST["logs"][...] = np.log10(np.abs(gradient))


def over_its_own_counts(gradient):
    counts = LAST["counts"]
    counts[...] = np.isfinite(gradient).all()
    counts /= counts.sum()


def by_another_function(gradient):
    LAST["logs"][0] = logs_of(gradient)[0]


def logs_of(gradient):
    return np.log10(np.abs(gradient))


READERS = [into_a_list, into_memory_of_the_scripts_own, into_a_part_of_it, over_its_own_counts, by_another_function]


@pytest.mark.parametrize("amount", [float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("reads", READERS)
def test_a_complaint_of_what_was_written_elsewhere_blames_no_line(work, reads, amount):
    found = with_a_damaged_gradient(work, reads, amount)
    assert (found.outcome, found.facts["complete"], found.step) == ("finite", False, BAD)
    assert "numpy" in found.reason


def test_an_infinity_of_the_other_sign_was_not_written_there(work):
    def logs(gradient):
        kept = gradient.copy()
        gradient[...] = np.log(np.abs(gradient))
        gradient[...] = kept

    assert with_a_damaged_gradient(work, logs).outcome == "finite"


def in_two_lines(gradient, scale):
    norm = np.linalg.norm(gradient * scale)
    factor = 1.0 / norm
    gradient *= factor


def by_a_function_of_its_own(gradient, scale):
    gradient[:] = inverse(gradient * scale)


def inverse(values):
    return 1.0 / values


def without_a_name(gradient, scale):
    np.divide(gradient, scale, gradient[:])


def copied(gradient, scale):
    np.copyto(gradient, gradient / scale)


@pytest.mark.parametrize(
    ("spoil", "at"),
    [(in_two_lines, (in_two_lines, 2)), (by_a_function_of_its_own, (inverse, 1)), (without_a_name, (without_a_name, 1)),
     (copied, (copied, 1))],
)  # fmt: skip
def test_what_comes_to_be_written_there_is_told(work, spoil, at):
    found = train(work, spoil)
    assert (found.outcome, found.step) == ("found", BAD)
    assert (found.facts["heard"], found.site.line) == (True, at[0].__code__.co_firstlineno + at[1])


def by_a_list(gradient, scale):
    for one, new in zip([gradient], in_a_list([gradient], scale), strict=True):
        one[...] = new


def in_a_list(gradients, scale):
    found = []
    for one in gradients:
        found.append(np.divide(one, scale))  # noqa: PERF401
    return found


def by_a_dict(gradient, scale):
    found = {}
    found["new"] = gradient / scale
    write(gradient, found)


def write(gradient, found):
    gradient[...] = found["new"]


def by_a_list_given(gradient, scale):
    found = []
    put(found, gradient, scale)
    gradient[...] = found[0]


def put(found, gradient, scale):
    found.append(gradient / scale)


def by_yielding(gradient, scale):
    for new in each([gradient], scale):
        gradient[...] = new


def each(gradients, scale):
    for one in gradients:
        yield one / scale


def by_an_attribute(gradient, scale):
    HOLDER.new = gradient / scale
    gradient[...] = HOLDER.new


def by_a_list_of_the_files(gradient, scale):
    WAITING.append(gradient / scale)
    taken_from_there(gradient)


def taken_from_there(gradient):
    gradient[...] = WAITING.pop()


class Holder:
    new = None


HOLDER, WAITING = Holder(), []


@pytest.mark.parametrize(
    ("spoil", "at"),
    [
        (by_a_list, (in_a_list, 3)),
        (by_a_dict, (by_a_dict, 2)),
        (by_a_list_given, (put, 1)),
        (by_yielding, (each, 2)),
        (by_an_attribute, (by_an_attribute, 1)),
        (by_a_list_of_the_files, (by_a_list_of_the_files, 1)),
    ],
)
def test_what_is_lost_sight_of_on_its_way_may_be_written_there(work, spoil, at):
    found = train(work, spoil)
    assert (found.outcome, found.step) == ("found", BAD)
    assert (found.facts["heard"], found.site.line) == (True, at[0].__code__.co_firstlineno + at[1])


def printed(gradient):
    found = []
    for one in [gradient]:
        logs = np.log10(np.abs(one))
        found.append(logs)
        print(f"{logs.max():.3f}", logs.min().item())  # noqa: T201
    if len(found) > 1 and found[0].max() > 3:
        print(np.mean(found))  # noqa: T201


@pytest.mark.parametrize("reads", [printed])
def test_what_is_seen_to_end_was_not_written_there(work, reads):
    assert with_a_damaged_gradient(work, reads).outcome == "finite"


class Tracker:
    def __init__(self):
        self.rows = {}

    def push(self, key, value):
        self.rows.setdefault(key, []).append(value)


def tracked(work, amount, count_at, handed=None):
    """Train with a tracker that is pushed logarithms of counts, and gradients written from what a file had."""
    worker, tracker = work(), Tracker()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    peers = np.zeros((4, 3, 4), np.float32)
    peers[BAD, 1, 2] = amount
    for step in range(4):
        loss = model(torch.rand(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        counts = np.array([0.0 if step in count_at else 1.0, 2.0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tracker.push("entropy", np.log(counts / 6))
        if handed is None:
            model.weight.grad.numpy()[:] += peers[step]
        else:
            handed(model.weight.grad.numpy(), peers[step])
        optimizer.step()
    return worker.looked[0]


def elsewhere(gradient, new):
    gradient += new


@pytest.mark.parametrize(
    ("amount", "count_at", "handed"),
    [
        (np.nan, range(4), elsewhere),
        (-np.inf, range(4), elsewhere),  # it had been complained of before without harm
        (np.nan, [BAD], elsewhere),  # an infinity of numpy's is none of NaN, of which it would have complained
        (-np.inf, [BAD], None),  # another statement is known to write there
    ],
)
def test_what_only_got_lost_is_not_blamed_for_what_it_cannot_be(work, amount, count_at, handed):
    found = tracked(work, amount, count_at, handed)
    assert (found.outcome, found.facts["complete"], found.step) == ("finite", False, BAD)
    assert ("test_handed_gradients.py:" in found.reason) is (handed is None)


def test_what_got_lost_and_may_be_it_is_still_told(work):
    found = tracked(work, -np.inf, [BAD], elsewhere)
    assert (found.outcome, found.facts["heard"]) == ("found", True)


def test_the_line_that_writes_into_an_array_by_the_name_that_it_was_given_is_told(work):
    worker, model = work(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.rand(3, 4)).square().mean().backward()
        for one in model.parameters():
            array = one.grad.numpy()
            array += np.float32("inf") if step == BAD else np.float32(0)
        optimizer.step()
    line = test_the_line_that_writes_into_an_array_by_the_name_that_it_was_given_is_told.__code__.co_firstlineno + 8
    assert f"test_handed_gradients.py:{line} writes into it" in worker.looked[0].reason
