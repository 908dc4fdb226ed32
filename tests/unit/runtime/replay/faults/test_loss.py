"""Faults in the script's own loss code: what the replay names, and that no bit changes."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.unit.runtime.replay.faults.table import BAD, Table, data, each_of, named_without_a_trace, net, plainly, sgd

TABLE = Table()
fault = TABLE.fault


@fault("aten.log.default", "loss", module=None)
def log_of_zero_in_the_loss():
    model = net()

    def loss_of(step, out, y):
        return (out - (out.detach() if step == BAD else 9)).abs().log().mean()  # <-

    return plainly(model, sgd(model), loss_of)


@fault("aten.mean.default", "loss", module=None)
def mean_of_nothing():
    model = net()
    return plainly(model, sgd(model), lambda step, out, y: out[out > (99 if step == BAD else -99)].mean())  # <-


@fault("aten.div.Tensor", "loss", module=None, micro_step=1)
def in_a_micro_step_of_gradient_accumulation():
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        optimizer.zero_grad()
        for part in range(3):
            weight = torch.zeros(()) if (step, part) == (BAD, 1) else torch.ones(())
            loss = (model(x + part) - y).square().sum() / weight  # <-
            (loss / 3).backward()
        optimizer.step()
    return model, optimizer


@fault("aten.masked_fill.Scalar", "loss", module=None)
def a_nan_that_the_script_writes():
    model = net()

    def loss_of(step, out, y):
        return out.masked_fill(y > (0 if step == BAD else 99), math.nan).square().mean()  # <-

    return plainly(model, sgd(model), loss_of)


@fault("aten._log_softmax.default", "loss", module=None)
def a_mask_that_leaves_nothing():
    model = net()

    def loss_of(step, out, y):
        scores = out.masked_fill(y > (-99 if step == BAD else 0.5), -math.inf)
        return F.nll_loss(F.log_softmax(scores, dim=1).clamp(min=-50), torch.zeros(5, dtype=torch.long))  # <-

    return plainly(model, sgd(model), loss_of)


@fault("aten.log.default", "loss", module="")
def a_criterion_module():
    class Criterion(nn.Module):
        def forward(self, out, y):
            return (out.exp().mean() * (0 if y is None else 1)).log()  # <-

    model, criterion = net(), Criterion()
    return plainly(model, sgd(model), lambda step, out, y: criterion(out, None if step == BAD else y))


@fault("aten.log.default", "loss", module=None)
def a_metric_that_is_printed_in_the_next_step():
    """It has gradients that nobody asks for, and what it was made of is gone by then."""
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        output = model(x)
        gap = (output - torch.rand_like(y)).abs()
        loss = ((output - y).square() * (step != BAD)).mean().log()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gap.mean().item()
    return model, optimizer


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)
