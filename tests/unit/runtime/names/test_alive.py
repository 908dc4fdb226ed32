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
    found = alive(lambda kind: nn.Linear in kind.__mro__)
    assert {id(one) for one in held} <= {id(one) for one in found}
    assert {type(one) for one in found} >= {nn.Linear, Own}
    assert set(map(id, found)) == {id(one) for one in gc.get_objects() if issubclass(type(one), nn.Linear)}


def test_nothing_of_what_was_passed_over_is_held():
    fresh = tuple(number for number in range(3))
    before = sys.getrefcount(fresh)
    alive(lambda kind: kind is Own)
    assert sys.getrefcount(fresh) == before


@pytest.mark.parametrize("enabled", [False, True])
def test_collections_are_as_the_script_has_them(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        alive(lambda kind: kind is Own)
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
