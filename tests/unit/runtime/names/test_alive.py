"""What is alive is found by its class, and no thread of the script's feels that it was looked for."""

import gc
import io
import sys
import threading

import pytest
from torch import nn

from nandiag.runtime.belongings.world import files
from nandiag.runtime.names import find_roots
from nandiag.runtime.names.alive import alive


class Own(nn.Linear):
    pass


def test_all_of_a_class_and_of_those_below_it_are_found():
    held = [nn.Linear(1, 1), Own(1, 1)]
    found = alive(nn.Linear)
    assert {id(one) for one in held} <= {id(one) for one in found}
    assert {type(one) for one in found} >= {nn.Linear, Own}
    assert set(map(id, found)) == {id(one) for one in gc.get_objects() if issubclass(type(one), nn.Linear)}


class Schema(type):
    """Two classes are equal where they have the same fields; a metaclass with ``__eq__`` alone has no hash."""

    def __eq__(cls, other):
        raise AssertionError("the script is asked whether classes are equal")

    __hash__ = None


class Record(metaclass=Schema):
    pass


def test_a_class_is_not_asked_what_it_is_equal_to():
    held = [Record(), Own(1, 1), Record()]
    assert held[1] in alive(Own)
    assert {id(held[0]), id(held[2])} == set(map(id, alive(Record)))
    assert held[1] in find_roots()
    assert list(files._files())


def test_nothing_of_what_was_passed_over_is_held():
    fresh = tuple(number for number in range(3))
    before = sys.getrefcount(fresh)
    alive(Own)
    assert sys.getrefcount(fresh) == before


def test_nothing_is_left_behind_that_only_a_collection_takes_away():
    gc.collect()
    alive(Own)
    assert gc.collect() < 10


def test_no_audit_hook_is_called_for_each_object():
    """It is Python that runs, and with it other threads: replays have one, to hear of files that are opened."""
    heard, hears = set(), [True]
    sys.addaudithook(lambda event, _: heard.add(event) if hears else None)  # there is no taking it off
    alive(Own)
    hears.clear()
    assert heard <= {"gc.get_objects"}


@pytest.mark.parametrize("enabled", [False, True])
def test_collections_are_as_the_script_has_them(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        alive(Own)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def slowly(amount):
    for number in range(amount):
        yield sum(range(number * 20))


@pytest.mark.parametrize("look", [find_roots, lambda: list(files._files()), files._archives])
def test_a_thread_that_fills_a_tuple_meanwhile_gets_it(look):
    """One that is referred to by somebody else cannot be given its size: its loader raised a SystemError."""
    kept, errors, done = [[number] for number in range(100_000)], [], threading.Event()

    def load():
        while not done.is_set():
            try:
                tuple(slowly(64))
            except SystemError as error:
                errors.append(error)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for one in threads:
        one.start()
    for _ in range(6):
        look()
    done.set()
    for one in threads:
        one.join(30)
    assert kept
    assert errors == []


def test_files_are_found_with_what_lies_in_them(tmp_path):
    with (tmp_path / "log").open("w") as file:
        found = set(map(id, files._files()))
    assert {id(file), id(file.buffer)} <= found
    assert isinstance(file, io.TextIOBase)
