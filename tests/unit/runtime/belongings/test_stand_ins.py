"""Iterators that a step takes from stand where they stood; where they cannot, the step is not run again."""

import collections
import csv
import fileinput
import functools
import itertools
import mmap
import queue
import re
import sqlite3
import threading
import typing
from pathlib import Path

import pytest

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.instead.iterators import copied, is_iterator
from nandiag.runtime.belongings.keeping import Belongings
from nandiag.runtime.guard import Refused
from tests.unit.runtime.belongings.test_belongings import ALONE
from tests.unit.runtime.belongings.test_files import looked, train

MANY = {
    "count": lambda: itertools.count(3, 2),
    "float count": lambda: itertools.count(0.5),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "cycle of a cycle": lambda: itertools.cycle(iter(itertools.islice(itertools.cycle("abc"), 5))),
    "list": lambda: iter([*range(9)]),
    "tuple": lambda: iter(tuple(range(9))),
    "range": lambda: iter(range(9)),
    "string": lambda: iter("abcdefghi"),
    "bytes": lambda: iter(b"abcdefghi"),
    "keys": lambda: iter({one: one for one in range(9)}),
    "items": lambda: iter({one: one for one in range(9)}.items()),
    "set": lambda: iter({*range(9)}),
    "reversed": lambda: reversed([*range(9)]),
    "zip": lambda: zip(itertools.count(), iter(range(9)), strict=False),
    "map": lambda: map(str, itertools.count()),
    "filter": lambda: filter(lambda one: one % 2, itertools.count()),
    "enumerate": lambda: enumerate(itertools.cycle("ab")),
    "chain": lambda: itertools.chain([1], iter([2, 3, 4]), range(9)),
    "chain of all": lambda: itertools.chain.from_iterable(iter([[1, 2], [3, 4], [5]])),
    "islice": lambda: itertools.islice(itertools.count(), 1, 20, 2),
    "accumulate": lambda: itertools.accumulate(itertools.count()),
    "product": lambda: itertools.product("ab", repeat=3),
    "permutations": lambda: itertools.permutations("abc"),
    "repeat": lambda: itertools.repeat(1, 6),
    "takewhile": lambda: itertools.takewhile(lambda one: one < 6, itertools.count()),
    "starmap": lambda: itertools.starmap(max, zip(itertools.count(), itertools.repeat(3), strict=False)),
}


def some(iterator, number):
    return [next(iterator, "over") for _ in range(number)]


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("before", [0, 1, 4, 20])
def test_a_copy_goes_on_and_takes_nothing(kind, before):
    one, other = MANY[kind](), MANY[kind]()
    assert is_iterator(type(one))
    assert some(one, before) == some(other, before)

    def inner(value):
        if isinstance(value, tuple):
            return tuple(map(inner, value))
        return copied(value, inner) if is_iterator(type(value)) else value

    again = copied(one, inner)
    expected = some(other, 12)
    assert some(again, 12) == expected
    assert some(one, 12) == expected


@pytest.mark.parametrize(
    "make", [lambda: (one for one in range(9)), lambda: re.finditer("a", "aaa"), lambda: itertools.tee(range(3))[0]]
)
def test_there_is_no_copy_of_what_does_not_tell_where_it_stands(make):
    with pytest.raises(TypeError, match="has no copy"):
        copied(make(), lambda value: value)


class Holder:
    """An object of the script's."""

    shared = None


class Slotted:
    __slots__ = ("rows",)


class Pair(typing.NamedTuple):
    left: object
    right: object


def in_a_name(rows):
    return {"rows": rows}, lambda held: next(held["rows"])


def in_an_attribute(rows):
    one = Holder()
    one.rows = rows
    return one, lambda held: next(held.rows)


def in_a_class(rows):
    Holder.shared = rows
    return Holder(), lambda held: next(held.shared)


def in_a_slot(rows):
    one = Slotted()
    one.rows = rows
    return one, lambda held: next(held.rows)


def in_a_list(rows):
    return [0, rows], lambda held: next(held[1])


def in_a_queue(rows):
    return collections.deque([0, rows]), lambda held: next(held[1])


def in_a_tuple(rows):
    return {"pair": Pair(1, (rows, 2))}, lambda held: next(held["pair"].right[0])


def in_a_closure(rows):
    return (lambda: next(rows)), lambda held: held()


def as_a_default(rows):
    return (lambda taken=rows: next(taken)), lambda held: held()


def as_a_method(rows):
    return {"take": rows.__next__}, lambda held: held["take"]()


def as_a_partial(rows):
    return {"take": functools.partial(next, rows)}, lambda held: held["take"]()


def beneath_another(rows):
    return {"rows": enumerate(zip(rows, itertools.count(), strict=False))}, lambda held: next(held["rows"])[1][0]


PLACES = [
    in_a_name, in_an_attribute, in_a_class, in_a_slot, in_a_list, in_a_queue, in_a_tuple, in_a_closure, as_a_default,
    as_a_method, as_a_partial, beneath_another,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ends", [False, True])
def test_wherever_it_is_held_the_scripts_own_is_not_moved_on(place, ends):
    held, take = place(itertools.cycle([1, 2, 3]))
    assert take(held) == 1
    keeping = Belongings([held], ALONE, ends=ends)
    keeping.begin({})
    assert [take(held), take(held), take(held)] == [2, 3, 1]
    keeping.put_back()
    assert take(held) == 2


@pytest.mark.parametrize("place", PLACES)
def test_wherever_a_generator_is_held_it_is_not_taken_from(place):
    held, take = place(one for one in range(9))
    assert take(held) == 0
    keeping = Belongings([held], ALONE, ends=False)
    keeping.begin({})
    with pytest.raises(Refused, match=r"generator.*the run goes on"):
        take(held)
    keeping.put_back()
    assert take(held) == 1


def test_two_names_for_one_iterator_stay_names_for_one():
    rows = itertools.count()
    held = {"one": rows, "other": [rows]}
    keeping = Belongings([held], ALONE)
    keeping.begin({})
    assert held["one"] is held["other"][0]
    next(held["one"])
    keeping.put_back()
    assert held["one"] is held["other"][0] is rows
    assert next(rows) == 0


def test_where_no_thread_but_nandiags_own_is_there_the_copy_itself_stands():
    held, beside = {"rows": iter([1, 2])}, Bystanders()
    beside.threads, beside.strangers = frozenset({1}), frozenset()
    keeping = Belongings([held], beside)
    keeping.begin({})
    assert type(held["rows"]) is type(iter([]))  # what C code asks for by its type
    assert list(held["rows"]) == [1, 2]
    keeping.put_back()
    assert list(held["rows"]) == [1, 2]


def test_other_threads_take_from_the_scripts_own():
    go, done = threading.Event(), threading.Event()
    held, got = Holder(), []
    held.count, held.rows = itertools.count(), (one for one in "abc")

    def other():
        go.wait(9)
        got.extend([next(held.count), next(held.rows)])
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    keeping = Belongings([held], Bystanders(), ends=False)
    keeping.begin({})
    assert [next(held.count), next(held.count)] == [0, 1]
    go.set()
    done.wait(9)
    keeping.put_back()
    thread.join(9)
    assert got == [0, "a"]
    assert next(held.count) == 1


def test_what_was_kept_of_a_stand_in_leads_to_what_it_stood_for():
    held, kept = {"rows": (one for one in "abc")}, []
    keeping = Belongings([held], ALONE, ends=False)
    keeping.begin({})
    kept.append(held["rows"])
    keeping.put_back()
    assert next(kept[0]) == "a"


def by_generator():
    rows = (one for one in range(9))
    return (lambda: next(rows)), lambda: next(rows)


def by_endless_loader():
    def forever(many):
        while True:
            yield from many

    rows = forever([*range(9)])
    return (lambda: next(rows)), lambda: next(rows)


def by_csv_of_a_generator():
    rows = csv.reader(f"{one}" for one in range(9))
    return (lambda: next(rows)), lambda: int(next(rows)[0])


def by_simple_queue():
    rows = queue.SimpleQueue()
    return (lambda: rows.put(1)), rows.qsize


def by_database():
    data = sqlite3.connect(":memory:", isolation_level=None)
    data.execute("create table t (n)")
    return (lambda: data.execute("insert into t values (1)")), lambda: data.execute("select * from t").fetchall()


def by_cursor():
    cursor = sqlite3.connect(":memory:").cursor()
    cursor.execute("create table t (n)")
    return (
        lambda: cursor.execute("insert into t values (1)"),
        lambda: cursor.execute("select * from t").fetchall(),
    )


def by_mapped_memory():
    room = mmap.mmap(-1, 100)
    return (lambda: room.write(b"1")), room.tell


@pytest.mark.parametrize(
    "make",
    [
        by_generator, by_endless_loader, by_csv_of_a_generator, by_simple_queue, by_database, by_cursor,
        by_mapped_memory,
    ],
)  # fmt: skip
def test_what_cannot_be_put_back_is_refused_where_the_run_goes_on(make, work):
    act, left = make()
    worker = work()
    steps = train(act)
    outcome, reason = looked(worker)
    assert outcome == "refused"
    assert "the run goes on" in reason
    assert left() in (steps, [(1,)] * steps)


def test_mapped_memory_holds_what_it_held_where_the_run_ends(tmp_path, work):
    path = Path(tmp_path, "room")
    path.write_bytes(b"0" * 10)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as room:
        worker = work(on_anomaly="stop")

        def act():
            room[0] += 1

        with pytest.raises(SystemExit):
            train(act)
        assert looked(worker)[0] == "found"
        assert room[:] == b"3" + b"0" * 9


def test_mapped_memory_that_is_only_read_stands_where_it_stood(tmp_path):
    path = Path(tmp_path, "room")
    path.write_bytes(b"0123456789")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as room:
        closed = mmap.mmap(-1, 10)
        closed.close()
        keeping = Belongings([{"room": room, "closed": closed}], ALONE, ends=False)
        keeping.begin({})
        assert room.read(3) == b"012"
        keeping.put_back()
        assert room.read(3) == b"012"


def test_an_iterator_of_a_librarys_class_stands_where_it_stood():
    rows = fileinput.FileInput(["there"])  # noqa: SIM115 - nothing is opened
    rows.place = 0
    rows._files = (one for one in ["there"])
    keeping = Belongings([{"rows": rows}], ALONE, ends=False)
    keeping.begin({})
    rows.place += 1
    with pytest.raises(Refused):
        next(rows._files)
    keeping.put_back()
    assert rows.place == 0
    assert next(rows._files) == "there"


def test_iterators_that_the_step_takes_from_stand_where_they_stood(work):
    cycle, pairs = itertools.cycle("ab"), zip(itertools.count(), range(9), strict=False)
    seen = []
    worker = work()
    steps = train(lambda: seen.append((next(cycle), *next(pairs))))
    assert looked(worker)[0] == "found"
    assert seen == [("a", 0, 0), ("b", 1, 1), ("a", 2, 2), ("b", 3, 3)]
    assert (next(cycle), next(pairs)) == ("a", (steps, steps))


def test_generators_that_the_step_does_not_take_from_are_no_matter(work):
    held = Holder()
    held.rows = (one for one in range(9))
    held.data = sqlite3.connect(":memory:")
    worker = work()

    def act():
        assert held.rows is not None

    train(act)
    assert looked(worker)[0] == "found"
    assert next(held.rows) == 0
