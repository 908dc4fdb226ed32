"""Whatever a script's own code changes when it runs is put back: counters, generators, containers, closures."""

import argparse
import array
import collections
import functools
import itertools
import random
import sys
import threading
import types
import typing
import weakref

import numpy as np
import pytest
import torch

from nandiag.runtime.belongings import numbers, reach
from nandiag.runtime.belongings.keeping import Belongings
from nandiag.runtime.belongings.reach import starts_of
from nandiag.runtime.guard import Refused


class Alone:
    """No other thread runs."""

    threads = strangers = frozenset()

    def here(self):
        return False


ALONE = Alone()


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
    keeping = Belongings([{"held": [tracker]}], ALONE)
    keeping.begin({})
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
    keeping = Belongings([[generator]], ALONE)
    first = draw(generator)
    keeping.put_back()
    assert draw(generator) == first


def test_a_closure():
    count = 0

    def call():
        nonlocal count
        count += 1
        return count

    keeping = Belongings([call], ALONE)
    call()
    keeping.put_back()
    assert call() == 1


def plain(number=0):
    return number


@pytest.mark.parametrize(
    "make",
    [
        lambda: functools.lru_cache(plain), lambda: functools.partial(plain), lambda: functools.singledispatch(plain),
        lambda: torch.no_grad()(plain), lambda: torch.zeros(2), lambda: torch.nn.Parameter(torch.zeros(2)),
    ],
)  # fmt: skip
def test_what_the_script_counts_on_what_is_no_object_of_its_own(make):
    counted = make()
    counted.calls = 1
    keeping = Belongings([[counted]], ALONE)
    counted.calls += 1
    keeping.put_back()
    assert counted.calls == 1


def test_the_rate_that_a_schedule_sets_within_the_step():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    keeping = Belongings([{"held": [schedule]}], ALONE)
    optimizer.step()
    schedule.step()
    keeping.put_back()
    assert (optimizer.param_groups[0]["lr"], schedule.last_epoch, schedule.get_last_lr()) == (1.0, 0, [1.0])


@pytest.mark.parametrize(("many", "change"), [([1, 2], list.pop), ({1, 2}, set.pop), ({"a": 1}, dict.popitem)])
def test_a_container(many, change):
    before = many.copy()
    keeping = Belongings([many], ALONE)
    change(many)
    keeping.put_back()
    assert many == before


def test_circles_and_locks_and_modules_are_no_matter():
    ring = [threading.Lock(), torch, itertools]
    ring.append(ring)
    Belongings([ring], ALONE).put_back()
    assert ring[3] is ring


def test_numbers_and_words_are_known_by_their_class(monkeypatch):
    """A script may hold a great many of them, and a replay asks for all that it holds."""
    asked = []
    follows = reach.is_followed
    monkeypatch.setattr(reach, "is_followed", lambda one: asked.append(one) or follows(one))
    followed = Tracker()
    held = [followed, 1, *range(1000), *map(str, range(1000)), followed.seen, (), [], Tracker, int]
    found = list(reach.reached([held]))
    assert len([one for one in asked if type(one) in {int, str}]) == 2
    assert {id(one) for one in (followed, followed.seen, followed.drawn, Tracker)} <= set(map(id, found))


class Lazy:
    """Says that it is of the class of what it stands for, as a library's does."""

    __module__ = "json"

    def __init__(self, target):
        self.__dict__["target"] = target

    @property
    def __class__(self):
        return type(self.__dict__["target"])


def test_a_class_or_a_thing_of_no_certain_class_is_asked_for_itself():
    """That one of them is not followed says nothing of the next."""
    starts = [int, Tracker, tuple(range(100_001)), (1,), Lazy(1), Lazy(np.ones(2))]
    found = set(map(id, reach.reached(starts)))
    assert [id(one) in found for one in starts[:4]] == [False, True, False, True]
    assert id(starts[5]) in found


def test_a_weak_reference_to_what_is_gone_is_no_matter():
    gone, kept = Tracker(), Tracker()
    held = [weakref.proxy(gone), weakref.proxy(kept), kept]
    del gone
    keeping = Belongings([held], ALONE)
    changed(kept)
    keeping.put_back()
    assert kept.number == 0


def test_operators_that_a_replay_was_the_first_to_use_stay():
    """Torch keeps plain pointers to them: taken away again, the next one of that name would end the process."""
    belongings = Belongings(starts_of(sys._getframe()), ALONE)
    namespace = "nandiag_test_of_operators"
    used = getattr(torch.ops, namespace)
    belongings.put_back()
    assert vars(torch.ops)[namespace] is used
    del vars(torch.ops)[namespace]


def numbers_of(kind):
    return {
        "ndarray": lambda: np.array([1.0, float("nan"), 0.0]),
        "complex": lambda: np.array([1j, 2.0]),
        "objects": lambda: np.array([1, "two"], dtype=object),
        "view": lambda: np.arange(9).reshape(3, 3)[:, 1],
        "bytearray": lambda: bytearray(b"\1\2"),
        "array": lambda: array.array("d", [1.0, 2.0]),
    }[kind]()


@pytest.mark.parametrize("kind", ["ndarray", "complex", "objects", "view", "bytearray", "array"])
def test_numbers_by_their_value(kind):
    one, expected = numbers_of(kind), numbers_of(kind)
    keeping = Belongings([{"held": (one,)}], ALONE)
    one[0], one[1] = one[1], 7
    keeping.put_back()
    assert repr(one) == repr(expected)


def test_zeros_of_another_sign():
    one = np.zeros(1)
    keeping = Belongings([[one]], ALONE)
    one[0] = -0.0
    keeping.put_back()
    assert not np.signbit(one[0])


class Slotted:
    __slots__ = ("held", "number", "unset")

    def __init__(self):
        self.number = 0
        self.held = np.zeros(2)


class Row(typing.NamedTuple):
    sums: np.ndarray


def test_slots_and_what_they_hold():
    one = Slotted()
    keeping = Belongings([one], ALONE)
    one.number += 1
    one.held[:] = 1
    one.unset = 1
    keeping.put_back()
    assert (one.number, one.held.tolist(), hasattr(one, "unset")) == (0, [0, 0], False)


def test_what_named_tuples_partials_defaults_and_decorated_functions_hold():
    sums = [np.zeros(1) for _ in range(4)]

    def add(kept, value=sums[1]):
        kept += value

    def make(kept):
        return torch.no_grad()(lambda: kept)

    keeping = Belongings([Row(sums[0]), functools.partial(add, sums[2]), make(sums[3])], ALONE)
    for one in sums:
        one[0] += 1
    keeping.put_back()
    assert [float(one[0]) for one in sums] == [0, 0, 0, 0]


@pytest.mark.parametrize("make", [argparse.Namespace, types.SimpleNamespace, Tracker])
def test_the_attributes_of_a_holder_of_the_standard_library(make):
    one = make()
    one.calls, one.seen = 1, []
    keeping = Belongings([{"args": one}], ALONE)
    one.calls += 1
    one.new = 1
    one.seen.append(1)
    keeping.put_back()
    assert (one.calls, one.seen, hasattr(one, "new")) == (1, [], False)


@pytest.mark.parametrize("make", [collections.UserDict, collections.ChainMap])
def test_the_items_of_a_map_of_the_standard_library(make):
    one = make({"calls": 1})
    keeping = Belongings([[one]], ALONE)
    one["calls"] += 1
    one["new"] = 1
    keeping.put_back()
    assert dict(one) == {"calls": 1}


def test_the_items_of_a_map_that_holds_its_keys_weakly():
    key, one = Tracker(), weakref.WeakKeyDictionary()
    one[key] = 1
    keeping = Belongings([{"held": one}], ALONE)
    one[key] += 1
    keeping.put_back()
    assert dict(one) == {key: 1}


@pytest.mark.parametrize("make", [list, collections.deque, set, dict.fromkeys, collections.Counter])
def test_a_large_container(make):
    one = make(range(150_000))
    before = one.copy()
    keeping = Belongings([[one]], ALONE)
    (one.pop if make is not set else one.remove)(*([0] if make in {set, dict.fromkeys, collections.Counter} else []))
    keeping.put_back()
    assert one == before


class Recent(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.move_to_end(key)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, Recent])
def test_the_order_of_a_map(kind):
    many = kind([("a", 1), ("b", 2), ("c", 3)])
    keeping = Belongings([many], ALONE)
    many["a"] = many.pop("a")
    keeping.put_back()
    assert list(many.items()) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_map_that_grows_while_it_is_put_back():
    many = {"a": 1, "b": 2}
    keeping = Belongings([many], ALONE)
    calls = itertools.count()

    def writes(_frame, _event, _arg):
        many[f"of another thread {next(calls)}"] = 0

    many["of the replay"] = 3
    sys.setprofile(writes)
    try:
        keeping.put_back()
    finally:
        sys.setprofile(None)
    assert {"a": 1, "b": 2}.items() <= many.items()
    assert "of the replay" not in many


def test_a_list_of_the_scripts_own_kind():
    class Seen(list):
        pass

    many = Seen([np.zeros(1)])
    keeping = Belongings([many], ALONE)
    many[0] += 1
    many.append(2)
    keeping.put_back()
    assert many == [0.0]


def test_a_tensor_that_is_given_other_memory():
    one = torch.zeros(3)
    keeping = Belongings([[one]], ALONE)
    one.data = torch.ones(2)
    keeping.put_back()
    assert one.tolist() == [0, 0, 0]


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr(numbers, "_MOST_BYTES", 100)


@pytest.mark.usefixtures("little_room")
def test_a_large_array_cannot_be_written_to_while_the_run_is_to_go_on():
    small, large = np.zeros(2), np.zeros(100)
    view = large[:90]
    keeping = Belongings([[small, view, large]], ALONE, ends=False)
    for one in (large, view):
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 1
    small[0] = 1
    keeping.put_back()
    assert small[0] == 0
    large[0] = view[1] = 1


@pytest.mark.usefixtures("little_room")
def test_a_large_array_is_left_alone_where_the_run_ends():
    large = np.zeros(100)
    keeping = Belongings([[large]], ALONE, ends=True)
    large[0] = 1
    keeping.put_back()
    assert large[0] == 1


@pytest.mark.usefixtures("little_room")
def test_what_can_neither_be_kept_nor_closed_is_refused_where_the_run_goes_on():
    large = np.zeros(100)
    with pytest.raises(Refused, match="the run goes on"):
        Belongings([[large, bytearray(200)]], ALONE, ends=False)
    large[0] = 1
