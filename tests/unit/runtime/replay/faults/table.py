"""A table of small faults: what the replay names, and that neither it nor the watching changes a single bit.

Each fault is a loop as a script would have it; the line at fault ends in ``# <-``. It runs twice, without nandiag and
with it, and returns what it trained, so that both runs can be compared bit for bit.
"""

# ruff: noqa: NPY002 - every generator that a script may use is used on purpose

import contextlib
import inspect
import io
import random

import numpy as np
import pytest
import torch
from torch import nn

BAD = 2


class Table:
    """Loops, each with what a replay should say of it."""

    def __init__(self):
        self.rows = []

    def fault(self, op, phase, *, source="op", step=BAD, **more):
        """Put a loop into the table with what the replay should say of it."""

        def add(function):
            self.add(function, {"op": op, "phase": phase, "source": source, "step": step, **more}, function.__name__)
            return function

        return add

    def add(self, function, expected, name):
        self.rows.append(pytest.param(function, expected, id=name))


def each_of(table):
    """Test each loop of a table by a replay, and by watching every op."""

    def marked(test):
        rows = pytest.mark.parametrize(("function", "expected"), table.rows)
        return pytest.mark.parametrize("level", ["step", "op"])(rows(test))

    return marked


def marked_line(function):
    lines, first = inspect.getsourcelines(function)
    return next((first + offset for offset, line in enumerate(lines) if line.rstrip().endswith("# <-")), None)


def net(*layers):
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def data(steps=4):
    for step in range(steps):
        yield step, torch.randn(5, 4), torch.randn(5, 3)


def plainly(model, optimizer, loss_of, steps=4):
    """The plain loop: ``loss_of(step, output, y)`` is the script's own loss."""
    for step, x, y in data(steps):
        loss = loss_of(step, model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def tensors_of(thing, found=None):
    found = [] if found is None else found
    if isinstance(thing, torch.Tensor):
        found.append(bits(thing))
    elif isinstance(thing, dict):
        for key, value in thing.items():
            found.append(str(key) if not isinstance(key, torch.Tensor) else "")
            tensors_of(value, found)
    elif isinstance(thing, list | tuple):
        for value in thing:
            tensors_of(value, found)
    else:
        found.append(repr(thing))
    return found


def fingerprint(model, *optimizers):
    """Every bit that training may depend on."""
    return {
        "state": tensors_of(dict(model.state_dict())),
        "gradients": [None if one.grad is None else bits(one.grad) for one in model.parameters()],
        "optimizers": [tensors_of(one.state_dict()) for one in optimizers],
        "attributes": [plain_attributes(module) for module in model.modules()],
        "generators": (bits(torch.get_rng_state()), random.getstate(), np.random.get_state()[1].tolist(),
                       np.random.get_state()[2]),
    }  # fmt: skip


def plain_attributes(module):
    return {name: value for name, value in vars(module).items() if isinstance(value, int | float | str | None)}


def run(function):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trained = function()
    return {**fingerprint(*trained), "stdout": printed.getvalue()}


def named_without_a_trace(function, expected, work, level):
    """The place is the same at each level, and so is every bit of the training."""
    expected = {**expected, **(expected.get("live", {}) if level == "op" else {})}
    plain = run(function)
    worker = work(level=level)
    watched = run(function)
    assert watched == plain
    assert worker.harms, "no harm was seen"
    looked = worker.looked[0]
    assert looked.method == {"step": "replay", "op": "watch"}[level]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == (
        "found", expected["source"], expected["step"], expected["phase"],
    ), looked  # fmt: skip
    assert looked.site.op == expected["op"]
    line = expected.get("line") or marked_line(function)
    if line is not None:
        assert (looked.site.file, looked.site.line) == (
            inspect.getsourcefile(getattr(function, "func", function)),
            line,
        )
        assert looked.site.source.endswith("# <-")
    for name in ("module", "node", "forward_op"):
        if name in expected:
            assert getattr(looked.site, name) == expected[name]
    if "micro_step" in expected:
        assert looked.micro_step == expected["micro_step"]
