"""A function that was followed holds nothing of the time when it was, once the step is over."""

import sys
import weakref

import pytest

from nandiag.runtime.watch.told.ways.follow import Ways


class Graph:
    """What a loss holds."""


@pytest.fixture(autouse=True)
def worker(recording):
    recording()


def run(ways, *, shown):
    """Run a loop that passes over a bad loss, and goes on; returns what there is of that at its end."""
    known, own = None, None
    for turn in range(4):
        graph = Graph()
        if turn == 1:
            known = weakref.ref(graph)
            ways.follow(sys._getframe(), turn)
            own = locals() if shown else None
        value = turn + 1
        if turn == 1:
            sys._getframe().f_locals  # noqa: B018 - as what looks for the cause of a bad loss reads them
            ways.end()
        ways.step_ends()
    return known(), value, own, graph


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a frame keeps nothing there")
def test_what_variables_were_is_let_go():
    assert run(Ways(), shown=False)[:2] == (None, 4)


def test_what_the_script_has_of_its_variables_itself_is_left_alone():
    assert run(Ways(), shown=True)[2]["turn"] >= 1
