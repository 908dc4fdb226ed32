"""What a replay must leave alone, looked at right before and right after it, in modules that keep state."""

# ruff: noqa: S311, NPY002, T201 - scripts print, use every generator, and not all that they are given

import collections
import contextlib
import io
import logging
import math
import random
import sys
import warnings

import numpy as np
import torch
from torch import nn

from tests.unit.runtime.replay.traces.keeping import BAD, Keeper, bits, everything, nothing_moved, train

# ---------------------------------------------------------------------- gradients, generators, hooks


def test_gradients_are_the_same_objects_with_the_same_bits(around_replays):
    model = Keeper(lambda *_: None)
    worker = around_replays(lambda: [(id(one.grad), one.grad._version, bits(one.grad)) for one in model.parameters()])
    train(model)
    nothing_moved(worker)


def test_a_parameter_without_a_gradient_gets_none(around_replays):
    model = Keeper(lambda *_: None)
    model.other = nn.Linear(2, 2)
    worker = around_replays(lambda: [one.grad is None for one in model.parameters()])
    train(model)
    nothing_moved(worker)
    assert worker.pairs[0][0] == [False, False, True, True]


def test_every_generator(around_replays):
    own = torch.Generator()

    def draw():
        return torch.randn(4, generator=own) + torch.randn(4) + random.random() + np.random.rand()

    def see():
        streams = np.random.get_state()
        return bits(torch.get_rng_state()), bits(own.get_state()), random.getstate(), streams[1].tolist(), streams[2]

    model = Keeper(lambda *_: draw())
    model.own = own
    worker = around_replays(see)
    train(model, before_step=draw)  # a replay ends before this draw
    nothing_moved(worker)


def test_a_generator_of_the_loop(around_replays):
    own = torch.Generator()
    worker = around_replays(lambda: bits(own.get_state()))
    model = Keeper(lambda *_: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        model.bad = step == BAD
        loss = (model(torch.randn(3, 4, generator=own)) + torch.rand(3, 4, generator=own)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    nothing_moved(worker)


def test_the_modes_of_torch(around_replays):
    def see():
        return (
            torch.is_grad_enabled(), torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
            torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled(), torch.get_default_dtype(),
        )  # fmt: skip

    worker = around_replays(see)
    train(Keeper(lambda *_: None))
    nothing_moved(worker)


# ---------------------------------------------------------------------- what is printed


def test_nothing_is_printed_or_logged_twice(around_replays, capfd):
    logger = logging.getLogger("a_script")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)

    def keep(module, out):
        print("out", module.bad)
        sys.stdout.buffer.write(b"bytes\n")
        sys.stdout.flush()
        logger.warning("logged")
        warnings.warn("warned", stacklevel=2)

    worker = around_replays(lambda: (sys.stdout, sys.stderr, logging.root.manager.disable))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        train(Keeper(keep))
    logger.removeHandler(handler)
    nothing_moved(worker)
    out, err = capfd.readouterr()
    assert (out.count("out"), out.count("bytes"), err.count("logged")) == (4, 4, 4)


def test_nothing_is_written_twice_by_way_of_the_streams_python_began_with(around_replays, monkeypatch):
    began, saved = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "__stdout__", began)
    monkeypatch.setattr(sys, "stdout", saved)

    def keep(module, out):
        print("saved", file=saved)
        saved.writelines(["lines\n"])
        sys.__stdout__.write("began\n")

    worker = around_replays(lambda: (sorted(vars(began)), sorted(vars(saved)), saved.write.__qualname__))
    train(Keeper(keep))
    nothing_moved(worker)
    said = saved.buffer.getvalue().decode()
    assert (said.count("saved"), said.count("lines"), began.buffer.getvalue().decode().count("began")) == (4, 4, 4)


def test_a_redirected_stdout_gets_nothing(around_replays):
    worker = around_replays(lambda: sys.stdout)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        train(Keeper(lambda *_: print("once")))
    nothing_moved(worker)
    assert printed.getvalue() == "once\n" * 4


# ---------------------------------------------------------------------- graphs that are open


def test_a_graph_that_is_open_can_still_be_walked(around_replays):
    """What the graph of a second loss saved is written to in the replay, and must not seem to have been."""

    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            self.scale += 1
            return self.layer(x)

    model, norm = Moving(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, norm)]
    worker = around_replays(lambda: [(one._version, bits(one)) for one in (*model.buffers(), *norm.buffers())])
    weight = torch.ones(4, requires_grad=True)
    for step in range(4):
        other = norm(torch.randn(3, 4))
        loss = (model(torch.randn(3, 4) + other.detach()).square() * (step != BAD)).log().mean()
        side = (weight * model.scale).sum()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (other.square().mean() + side).backward()
        optimizers[1].step()
    nothing_moved(worker)


def test_a_replay_that_fails_leaves_no_trace_either(around_replays):
    """The script's forward refuses to run twice."""
    calls = collections.Counter()

    def keep(module, out):
        calls["all"] += 1
        module.calls = getattr(module, "calls", 0) + 1
        if calls["all"] == BAD + 2:
            raise RuntimeError("not twice")

    model = Keeper(keep)
    worker = around_replays(lambda: (everything(model), [bits(one.grad) for one in model.parameters()]))
    with contextlib.suppress(RuntimeError):
        train(model)
    (before, after, looked), *_ = worker.pairs
    assert (looked.outcome, looked.reason) == ("failed", "RuntimeError: not twice")
    assert before == after
    assert not worker.capture.off


def test_the_optimizers_state_stays_in_its_order(work):
    """The first update is made again, on the parameter that it left bad, as if that had had no state."""
    worker = work()
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    sum(one.square().sum() for one in weights).backward()
    weights[0].grad.fill_(math.nan)
    optimizer.step()
    assert [one.phase for one in worker.looked][-1:] == ["optimizer"]
    assert [id(one) for one in optimizer.state] == [id(one) for one in weights]
