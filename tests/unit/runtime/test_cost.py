"""What a plain step costs, by counts that no load on the machine changes: calls of our Python, reads, looks, walks.

The bounds are a tenth above what is so now. Who needs more says so here, and why.
"""

import gc
import inspect
import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import nandiag
from nandiag.runtime import frames
from nandiag.runtime.early.data import inputs
from nandiag.runtime.look import finite
from nandiag.runtime.steady import assured
from nandiag.runtime.tape import exchange
from nandiag.runtime.tape.noted import pace

OURS = f"{Path(nandiag.__file__).parent}/"
STEPS = 8


class Loop:
    """The step of a small MLP, as scripts/bench makes it."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x, self.y = torch.randn(8, 8), torch.randint(0, 4, (8,))

    def __call__(self):
        loss = functional.cross_entropy(self.model(self.x).flatten(0, -2), self.y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@pytest.fixture
def loop(work, monkeypatch):
    # An earlier test has made optimizers of this class, whose step torch wraps once for all.
    bare = inspect.unwrap(torch.optim.AdamW.step, stop=lambda one: one.__code__.co_name == "_use_grad")
    monkeypatch.setattr(torch.optim.AdamW, "step", bare)
    # What is done seldom where steps are short must not hang on how long these take, profiled on a busy machine.
    monkeypatch.setattr(pace, "_SHORT", math.inf)
    monkeypatch.setattr(inputs, "_SHORT_STEP", math.inf)
    monkeypatch.setattr(assured, "_SHARE", 0.0)
    monkeypatch.setattr(assured, "_SHORTEST", math.inf)
    gc.collect()
    gc.freeze()  # modules that an earlier test left behind would be watched for a change
    work()
    made = Loop()
    for _ in range(70):  # the first batches are all looked at
        made()
    return made


def calls_of(step):
    """How often each function of ours is called a step."""
    counts = Counter()

    def seen(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and "<" not in code.co_name:
            counts[code.co_filename.removeprefix(OURS), code.co_name] += 1

    try:
        for turn in range(STEPS + 1):
            if turn == 1:  # in the first it is learnt who calls backward
                sys.setprofile(seen)
            step()
    finally:
        sys.setprofile(None)
    return counts


def test_a_step_makes_few_calls_of_ours(loop):
    counts = calls_of(loop)
    # Three of them for what is noted where a loop makes very many calls.
    assert sum(counts.values()) / STEPS <= 149, counts.most_common(20)


def test_a_step_looks_at_gradients_losses_and_weights_and_seldom_at_the_state(loop):
    """That is known to be finite after most updates; the weights are looked at side by side, without more ado."""
    counts = calls_of(loop)
    looks = counts["runtime/look/finite.py", "_norm"]
    plain = counts["runtime/steady/borders.py", "ended"]
    assert plain == STEPS
    # Where a batch was looked at, or the state is to be, the border is the sentinel's own.
    assert looks <= 3
    assert finite.read([torch.ones(())]) == [1.0]


def test_more_weights_than_are_copied_cost_few_calls_as_well(loop, monkeypatch):
    """They are looked at tensor by tensor, by the same short way."""
    monkeypatch.setattr(assured, "_FEW", 0)
    for _ in range(60):  # all is looked at once more
        loop()
    counts = calls_of(loop)
    assert counts["runtime/watch/sentinel.py", "before_step"] <= 1
    assert sum(counts.values()) / STEPS <= 165, counts.most_common(20)


def test_a_step_walks_to_the_scripts_line_once_for_each_thing_taped(loop):
    """A forward, two flatten, the loss and the backward; torch's profiling of ``step`` is not among them."""
    counts = calls_of(loop)
    assert counts["runtime/frames/__init__.py", "trail"] == 5 * STEPS
    assert counts["runtime/frames/__init__.py", "places_on"] == 0  # whose code it is nobody has asked
    assert counts["runtime/tape/loop/window.py", "__torch_function__"] == 3 * STEPS


def test_a_walk_hashes_no_code():
    assert all(type(one) is int for one in frames.BOUNDARIES)


def test_modules_within_modules_cost_one_call_each(loop):
    plain = calls_of(loop)
    loop.model = nn.Sequential(*loop.model, *(nn.Identity() for _ in range(10)))
    for _ in range(130):  # what its calls change is learnt in the first ones, at ever longer intervals
        loop()
    deep = calls_of(loop)
    more = (sum(deep.values()) - sum(plain.values())) / STEPS
    assert more <= 14  # each wrap passes straight on


class ByHand(Loop):
    """Reduces its gradients itself, one call for each."""

    def __call__(self):
        loss = functional.cross_entropy(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        for one in self.model.parameters():
            dist.all_reduce(one.grad)
        self.optimizer.step()


@pytest.mark.parametrize(("others", "most"), [(False, 122), (True, 169)])
def test_a_reduction_of_a_gradient_makes_few_calls_of_ours(others, most, loop, group, monkeypatch):
    """What is plain passes straight on: nothing that it leads to is asked before somebody wants to know.

    Where there are other ranks a replay is to know behind which line gradients hold their part as well.
    """
    monkeypatch.setattr(exchange, "_is_shared", lambda: others)
    by_hand = ByHand()
    for _ in range(24):  # the first 20 are learnt from
        by_hand()
    plain, counts = calls_of(loop), calls_of(by_hand)
    many = len(list(by_hand.model.parameters()))
    assert counts["runtime/collectives/ring.py", "begin"] == many * STEPS
    assert counts["runtime/tape/loop/window.py", "__torch_function__"] <= (many + 1) * STEPS  # gradients, the loss
    more = (sum(counts.values()) - sum(plain.values())) / STEPS / many
    # More than a plain step, whose borders and calls are noted in straight lines, which these are not.
    # One hears of messages; where there are others, what is reduced is asked whether it came of the weights.
    # One asks the tape whether what is read off a weight was made in this step.
    # A few of them for what may be a count or a norm that goes with the gradients, which small ones are asked for.
    assert more <= most, (counts - plain).most_common(40)
