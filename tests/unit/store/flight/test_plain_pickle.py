"""Pickles of plain values are read like pickle reads them; nothing else is, and nothing is ever called."""

import collections
import datetime as dt
import os
import pickle
import random

import pytest

from nandiag.store.flight import plain_pickle

PLAIN = [
    None, True, False, 0, -1, 255, 70_000, -(2**40), 2**90, 1.5, float("inf"), "", "größe\n'\"\\", [], {}, (),
    [1, [2, (3,), (4, 5), (6, 7, 8), (9, 10, 11, 12)]], {"a": {"b": [None, True]}, 1: "x", (1, 2): 3},
    ["same"] * 3, {str(number): list(range(number)) for number in range(300)},
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:24])
def test_plain_values_are_read_as_pickle_reads_them(value, protocol):
    assert plain_pickle.loads(pickle.dumps(value, protocol)) == value


class Harm:
    def __reduce__(self):
        return os.mkdir, ("/proc/never",)


called = []


class Calls:
    def __reduce__(self):
        return called.append, (1,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [Harm(), Calls(), [Calls()], os.getcwd, dt.date(2026, 1, 1), {1, 2}, frozenset({1}), b"bytes", bytearray(b"b"),
     collections.OrderedDict(a=1), 1j, object()],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_whatever_else_is_refused_and_nothing_runs(value, protocol):
    with pytest.raises(ValueError, match="no part of a plain value"):
        plain_pickle.loads(pickle.dumps(value, protocol))
    assert called == []


def test_a_name_by_hand_is_refused_in_every_spelling():
    for data in (b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"(i__main__\nA\n.", b"P1\n.",
                 b"\x80\x02\x82\x01."):  # fmt: skip
        with pytest.raises(ValueError):
            plain_pickle.loads(data)


def test_torn_pickles_and_garbage_are_no_pickles():
    whole = pickle.dumps({"entries": [{"a": (1, 2, "x")}] * 3, "version": "2.10"}, 2)
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            plain_pickle.loads(whole[:end])
    chance = random.Random(7)  # noqa: S311 - the same garbage each time
    for _ in range(3_000):
        torn = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            torn[chance.randrange(len(torn))] = chance.randrange(256)
        try:
            plain_pickle.loads(bytes(torn))
        except ValueError:
            continue


def test_too_large_a_file_is_refused(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="too large"):
        plain_pickle.loads(pickle.dumps(list(range(100))))
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 10_000)
    monkeypatch.setattr(plain_pickle, "MOST_OPCODES", 10)
    with pytest.raises(ValueError, match="too many opcodes"):
        plain_pickle.loads(pickle.dumps([[] for _ in range(100)]))


def test_a_list_that_holds_itself_and_one_that_doubles_cost_nothing():
    loop = []
    loop.append(loop)
    assert plain_pickle.loads(pickle.dumps(loop))[0]
    doubled = ["x"]
    for _ in range(200):
        doubled = [doubled, doubled]
    assert len(plain_pickle.loads(pickle.dumps(doubled))) == 2
