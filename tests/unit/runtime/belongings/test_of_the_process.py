"""What a step sets for the whole process, or notes on what is not the script's own, is set back."""

import argparse
import collections
import decimal
import gc
import logging
import math
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from nandiag.runtime.belongings.keeping import Belongings
from nandiag.runtime.belongings.world.settings import settings
from tests.faults.acting import BAD, looked, train


class Alone:
    """No other thread runs."""

    threads = strangers = frozenset()

    def here(self):
        return False


ALONE = Alone()


@pytest.mark.parametrize(
    ("ask", "change"),
    [
        (sys.getrecursionlimit, lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7)),
        (sys.getswitchinterval, lambda: sys.setswitchinterval(0.5)),
        (gc.get_threshold, lambda: gc.set_threshold(701, 9, 8)),
        (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
        (torch.get_num_threads, lambda: torch.set_num_threads(2)),
        (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("medium")),
        (torch.get_deterministic_debug_mode, lambda: torch.set_deterministic_debug_mode(1)),
        (lambda: float(torch.tensor([1e-39]) * 1), lambda: torch.set_flush_denormal(True)),
        (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
        (lambda: torch.backends.mkldnn.enabled, lambda: torch._C._set_mkldnn_enabled(False)),
        (lambda: torch.backends.cudnn.benchmark, lambda: torch._C._set_cudnn_benchmark(True)),
        (lambda: str(torch.tensor([0.123456])), lambda: torch.set_printoptions(precision=2)),
        (lambda: list(warnings.filters), lambda: warnings.filterwarnings("ignore", message="of the test")),
    ],
)
def test_what_the_process_goes_by(ask, change):
    before, back = ask(), settings()
    try:
        change()
        assert ask() != before
    finally:
        back()
    assert ask() == before


@pytest.fixture
def precision_by_the_newer_names():
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch sets the precision of float32 by its older names alone")
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = "tf32", "bf16"
    yield
    torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.usefixtures("precision_by_the_newer_names")
def test_the_precision_of_float32_by_its_newer_names():
    """There the older name refuses to be read; each other setting is put back all the same."""
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    limit, back = sys.getrecursionlimit(), settings()
    sys.setrecursionlimit(limit + 7)
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    back()
    assert (sys.getrecursionlimit(), torch.backends.mkldnn.matmul.fp32_precision) == (limit, "bf16")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_the_context_of_decimal_numbers():
    with decimal.localcontext() as context:
        context.clear_flags()
        back = settings()
        context.prec += 3
        decimal.Decimal(1) / decimal.Decimal(3)
        assert context.flags[decimal.Inexact]
        back()
        assert context.prec == decimal.DefaultContext.prec
        assert not context.flags[decimal.Inexact]


def test_nothing_is_set_that_is_as_it_was(monkeypatch):
    back = settings()
    told = []
    monkeypatch.setattr(gc, "set_threshold", lambda *many: told.append(many))
    back()
    assert told == []


@pytest.mark.parametrize(
    "make", [lambda: np.random.SeedSequence(3), lambda: np.random.default_rng(3), lambda: np.random.PCG64(3)]
)
def test_the_children_of_a_seed(make):
    one = make()
    one.spawn(1)
    keeping = Belongings([[one]], ALONE)
    seeds = one if isinstance(one, np.random.SeedSequence) else getattr(one, "bit_generator", one).seed_seq
    one.spawn(2)
    keeping.put_back()
    assert seeds.n_children_spawned == 1
    assert seeds.spawn(1)[0].spawn_key == (1,)


def test_a_sequence_of_torch_that_moves_on():
    engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=1)
    engine.draw(3)
    keeping = Belongings([[engine]], ALONE)
    engine.draw(2)
    keeping.put_back()
    assert engine.num_generated == 3


def test_an_event_that_nobody_waits_for():
    event = threading.Event()
    keeping = Belongings([[event]], ALONE)
    event.set()
    keeping.put_back()
    assert not event.is_set()


class Counting(torch.optim.Optimizer):
    made = 0

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.count, self.trace = 0, []
        self.drawn = torch.Generator().manual_seed(1)

    def step(self):
        self.count += 1
        Counting.made += 1
        self.trace.append(torch.rand(1, generator=self.drawn))


def test_what_an_optimizer_of_the_scripts_own_keeps():
    optimizer = Counting([nn.Parameter(torch.ones(2))])
    state = optimizer.drawn.get_state()
    keeping = Belongings([[optimizer]], ALONE)
    optimizer.step()
    keeping.put_back()
    assert (optimizer.count, Counting.made, optimizer.trace) == (0, 0, [])
    assert bool((optimizer.drawn.get_state() == state).all())


def noting():
    nn.Linear.noted = getattr(nn.Linear, "noted", 0) + 1
    math.noted = getattr(math, "noted", 0) + 1
    setattr(argparse.Namespace, "noted", getattr(argparse.Namespace, "noted", 0) + 1)  # noqa: B010 - that is the test
    torch.nn.functional.noted = 1


class Noting(nn.Module):
    def forward(self, x):
        nn.Linear.noted += 1

        def within():
            nn.Linear.noted += len(x)

        within()


def test_notes_on_modules_and_classes_of_others():
    owners = (nn.Linear, math, argparse.Namespace)
    try:
        noting()
        del torch.nn.functional.noted
        keeping = Belongings([[noting, Noting()]], ALONE)
        noting()
        Noting()(range(2))
        keeping.put_back()
        assert [owner.noted for owner in owners] == [1, 1, 1]
        assert not hasattr(torch.nn.functional, "noted")
    finally:
        for owner in (*owners, torch.nn.functional):
            vars(owner).get("noted") and delattr(owner, "noted")


def test_hooks_and_handlers_that_a_step_registers_are_there_once(work):
    worker, calls, weight = work(), collections.Counter(), nn.Parameter(torch.ones(1))
    other = torch.optim.SGD([weight], lr=0.1)
    log = logging.getLogger("nandiag.tests.late")
    log.propagate = False
    handles = []

    def acts():
        if not handles:
            handles.append(1)
        elif len(handles) <= BAD:
            handles.append(1)
            if len(handles) == BAD + 1:
                handles.append(register_module_forward_hook(lambda *_: calls.update(["all"])))
                handles.append(other.register_step_post_hook(lambda *_: calls.update(["update"])))
                handles.append(weight.register_hook(lambda _: calls.update(["gradient"])))
                log.addHandler(logging.NullHandler())

    try:
        train(acts)
        calls.clear()
        nn.Identity()(weight).sum().backward()
        other.step()
    finally:
        for one in handles[-3:]:
            one.remove()
    assert looked(worker)[0] == "found"
    assert calls == {"all": 1, "update": 1, "gradient": 1}
    assert len(log.handlers) == 1
