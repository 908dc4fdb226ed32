"""Nodes are known by who made them, though each thread that makes some numbers its own."""

import threading
from types import SimpleNamespace

import pytest
import torch

from nandiag.runtime.frames.nodes import Maker, Nodes
from nandiag.runtime.levels.ops.watch import OpWatch
from nandiag.runtime.replay.trace.tracer import Tracer

TINY = 1e-40  # its root has a finite gradient, and that a gradient which is not


@pytest.fixture
def in_a_new_thread():
    """Return what a function does in a thread that lives on, whose numbers begin at 0, as an engine's once did."""
    over = threading.Event()

    def run(function, *args):
        found, done = [], threading.Event()

        def work():
            found.append(function(*args))
            done.set()
            over.wait(60)

        threading.Thread(target=work).start()
        assert done.wait(20)
        return found[0]

    yield run
    over.set()


def forward(mode, x):
    with mode:
        root = x.sqrt()
        scaled = root * 0.5
        return scaled.sum()


def gradient(mode, loss, x):
    with mode:
        return torch.autograd.grad(loss, x, create_graph=True)[0]


def origin(op):
    return op if op.born else origin(op.parents[0])


@pytest.mark.parametrize("kind", [lambda: Tracer({}, joint=False), OpWatch])
def test_the_gradient_of_a_gradient_has_the_line_whose_gradient_that_is(kind, in_a_new_thread, recording):
    recording()
    mode, x = kind(), torch.full((3,), TINY, requires_grad=True)
    slope = in_a_new_thread(gradient, mode, in_a_new_thread(forward, mode, x), x)
    with mode:
        (bend,) = torch.autograd.grad(slope.sum(), x)
    if isinstance(mode, OpWatch):
        mode.read()
    spot = origin(mode.writer(bend)).spot
    assert (spot.node, spot.forward_op, spot.twice) == ("DivBackward0", "aten.div.Tensor", True)
    assert spot.frames[0].line == forward.__code__.co_firstlineno + 2


class Partial(torch.Tensor):
    """A tensor whose root takes other ops first, as a DTensor does that has to add up what ranks hold."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = [one.inner if isinstance(one, Partial) else one for one in args]
        if func is torch.ops.aten.sqrt.default:
            given = [given[0] + torch.zeros_like(given[0])]
        return Partial(func(*given, **(kwargs or {})))


@pytest.mark.parametrize("kind", [lambda: Tracer({}, joint=False), OpWatch])
def test_the_node_of_a_subclass_is_its_own_op_s_and_not_that_of_the_first_op_which_it_takes(kind, recording):
    recording()
    mode, x = kind(), Partial(torch.zeros(3)).requires_grad_()
    with mode:
        root = x.sqrt()
    nodes = mode.spots._made if isinstance(mode, OpWatch) else mode.spots._nodes
    assert nodes.maker(root.grad_fn).op == "aten.sqrt.default"


def made_by(nodes, op):
    """Return a function that makes a node in its thread, and notes ``op`` for it."""

    def make():
        made = torch.ones(1, requires_grad=True).exp()
        nodes.add(nodes.newest(), Maker(op, op))
        return made.grad_fn

    return make


def test_two_threads_whose_nodes_are_of_one_name_leave_it_open(in_a_new_thread):
    nodes = Nodes()
    first = in_a_new_thread(made_by(nodes, "aten.exp.default"))
    assert nodes.maker(first).place == "aten.exp.default"
    second = in_a_new_thread(made_by(nodes, "aten.exp_.default"))
    assert first._sequence_nr() == second._sequence_nr()
    assert nodes.maker(first) is None


def test_of_two_threads_the_name_tells_which(in_a_new_thread):
    nodes = Nodes()
    node = in_a_new_thread(made_by(nodes, "aten.exp.default"))
    in_a_new_thread(made_by(nodes, "aten.nll_loss_forward.default"))
    assert nodes.maker(node).op == "aten.exp.default"


def test_the_newer_half_is_kept():
    nodes = Nodes()
    for number in range(10):
        nodes.add((number, 1), Maker(number, None))
    nodes.forget(9)
    assert len(nodes) == 6
    assert nodes.maker(SimpleNamespace(_sequence_nr=lambda: 9)).place == 9
    assert nodes.maker(SimpleNamespace(_sequence_nr=lambda: 3)) is None
