"""Whatever a script's own code changes when it runs is put back: counters, generators, containers, closures."""

import itertools
import random
import sys
import threading

import numpy as np
import pytest
import torch

from nandiag.runtime.belongings.keeping import Belongings
from nandiag.runtime.belongings.reach import starts_of


class Tracker:
    calls = 0

    def __init__(self):
        self.seen = []
        self.number = 0
        self.drawn = np.random.default_rng(0)
        self.count = itertools.count()


def changed(tracker):
    tracker.seen.append(1)
    tracker.number += 1
    tracker.new = 5
    Tracker.calls += 1


def test_an_object_with_all_it_holds():
    tracker = Tracker()
    keeping = Belongings([{"held": [tracker]}])
    expected = tracker.drawn.bit_generator.state
    changed(tracker)
    tracker.drawn.random()
    assert next(tracker.count) == 0
    keeping.put_back()
    assert (tracker.seen, tracker.number, Tracker.calls, hasattr(tracker, "new")) == ([], 0, 0, False)
    assert tracker.drawn.bit_generator.state == expected
    assert next(tracker.count) == 0


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (random.Random(1), lambda one: one.random()),  # noqa: S311 - no secret
        (np.random.RandomState(1), lambda one: one.rand()),
        (np.random.default_rng(1), lambda one: one.random()),
        (torch.Generator().manual_seed(1), lambda one: torch.rand(1, generator=one).item()),
    ],
)
def test_a_generator_goes_on_where_it_was(generator, draw):
    keeping = Belongings([[generator]])
    first = draw(generator)
    keeping.put_back()
    assert draw(generator) == first


def test_a_closure():
    count = 0

    def call():
        nonlocal count
        count += 1
        return count

    keeping = Belongings([call])
    call()
    keeping.put_back()
    assert call() == 1


@pytest.mark.parametrize(("many", "change"), [([1, 2], list.pop), ({1, 2}, set.pop), ({"a": 1}, dict.popitem)])
def test_a_container(many, change):
    before = many.copy()
    keeping = Belongings([many])
    change(many)
    keeping.put_back()
    assert many == before


def test_circles_and_locks_and_modules_are_no_matter():
    ring = [threading.Lock(), torch, itertools]
    ring.append(ring)
    Belongings([ring]).put_back()
    assert ring[3] is ring


def test_operators_that_a_replay_was_the_first_to_use_stay():
    """Torch keeps plain pointers to them: taken away again, the next one of that name would end the process."""
    belongings = Belongings(starts_of(sys._getframe()))
    namespace = "nandiag_test_of_operators"
    used = getattr(torch.ops, namespace)
    belongings.put_back()
    assert vars(torch.ops)[namespace] is used
    del vars(torch.ops)[namespace]
