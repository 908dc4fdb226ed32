"""The states of generators: those that the script has, and none that looking at them would bring in."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from nandiag.runtime.tape.state import Generators, generators, python_used


class Lazy(ModuleType):
    """numpy as it is before anybody has asked for its generators: to ask is to import them."""

    def __getattr__(self, name):
        pytest.fail(f"numpy.{name} was imported")


@pytest.fixture
def unasked(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", Lazy("numpy"))
    monkeypatch.delitem(sys.modules, "numpy.random")
    return monkeypatch


def test_generators_of_numpy_that_nobody_asked_for_are_not_imported(unasked):
    """A process that is forked meanwhile by another thread would wait for that import without end."""
    states = generators(full=True)
    assert states.numpy is None
    assert not python_used(states)
    states.put_back()


def test_generators_of_numpy_that_another_thread_is_importing_have_no_state_yet(unasked):
    unasked.setitem(sys.modules, "numpy.random", ModuleType("numpy.random"))
    taken = generators(full=True)
    assert taken.numpy is None
    assert not python_used(taken)


def test_generators_of_numpy_that_came_in_since_may_have_been_used(unasked):
    states = generators(full=True)
    unasked.setitem(sys.modules, "numpy.random", np.random)
    assert python_used(states)


def test_a_draw_of_numpys_is_seen_and_put_back():
    states = generators(full=True)
    first = np.random.random()  # noqa: NPY002
    assert python_used(states)
    states.put_back()
    assert np.random.random() == first  # noqa: NPY002


class OfDevice:
    """Stands in for a device's generator: ``resets`` counts how often recurrent layers would begin anew."""

    def __init__(self, shared=None):
        self.shared, self.resets = shared if shared is not None else [torch.zeros(16, dtype=torch.uint8)], 0

    def set_state(self, state):
        self.shared[0], self.resets = state, self.resets + 1

    def graphsafe_get_state(self):
        return OfDevice(self.shared)


def test_a_devices_generator_is_put_back_without_recurrent_layers_beginning_anew(monkeypatch):
    default = OfDevice()
    monkeypatch.setattr(torch.cuda, "default_generators", (default,))
    kept = torch.arange(16, dtype=torch.uint8)
    Generators(torch.get_rng_state(), ((0, kept),)).put_back()
    assert default.shared == [kept]
    assert default.resets == 0
