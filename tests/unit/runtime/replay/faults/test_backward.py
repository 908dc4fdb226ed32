"""Faults that only the backward shows: what the replay names, and that no bit changes."""

import torch
from torch import nn

from tests.unit.runtime.replay.faults.table import (
    BAD,
    Table,
    data,
    each_of,
    marked_line,
    named_without_a_trace,
    net,
    plainly,
    sgd,
)

TABLE = Table()
fault = TABLE.fault


@fault("aten.div.Tensor", "backward", node="SqrtBackward0", forward_op="aten.sqrt.default")
def sqrt_at_zero():
    model = net()
    return plainly(model, sgd(model), lambda step, out, y: torch.sqrt((out * (step != BAD)).square()).sum())  # <-


@fault("aten.div.Tensor", "backward", node="SqrtBackward0", forward_op="aten.sqrt.default")
def the_where_trick():
    model = net()

    def loss_of(step, out, y):
        zeros = out * 0 if step == BAD else out.abs() + 1
        return torch.where(zeros > 0, torch.sqrt(zeros), zeros * 0).sum() + out.sum()  # <-

    return plainly(model, sgd(model), loss_of)


@fault("aten.div.Tensor", "backward")
def a_custom_function():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by):
            ctx.save_for_backward(by)
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient / ctx.saved_tensors[0], None  # <-

    model = net()
    return plainly(
        model, sgd(model), lambda step, out, y: Scaled.apply(out, torch.tensor(float(step != BAD))).square().mean()
    )


@fault("aten.div.Tensor", "backward")
def a_tensor_hook():
    model = net()

    def loss_of(step, out, y):
        if step == BAD:
            out.register_hook(lambda gradient: gradient / torch.zeros(()))  # <-
        return (out - y).square().mean()

    return plainly(model, sgd(model), loss_of)


@fault("aten.div.Tensor", "optimizer")
def between_backward_and_step():
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.zeros(()) if step == BAD else torch.ones(())
        for parameter in model.parameters():
            parameter.grad = parameter.grad / norm  # <-
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "optimizer")
def a_trust_ratio_of_weights_that_are_zero():
    class Trust(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self):
            for one in self.param_groups[0]["params"]:
                if one.grad is not None:
                    update = one.grad + 0.1 * one
                    trust = one.norm() / update.norm()  # <-
                    one.sub_(0.01 * trust.clamp(max=10) * update)

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.adapter = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)
            nn.init.zeros_(self.adapter.weight)

        def forward(self, x):
            return self.base(x) + (0.0 * self.adapter(x) if self.adapter.weight.requires_grad else 0.0)

    model = Adapted()
    model.adapter.requires_grad_(requires_grad=False)
    optimizer = Trust(model.parameters())
    for step, x, y in data():
        model.adapter.requires_grad_(requires_grad=step == BAD)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.div_.Tensor", "optimizer")
def in_place_between_backward_and_step():
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.zeros(()) if step == BAD else torch.ones(())
        for parameter in model.parameters():
            parameter.grad.div_(norm)  # <-
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "backward", node="SqrtBackward0")
def a_gradient_penalty():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = sgd(model)
    for step, x, _ in data():
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x * (step != BAD)).sum(), x, create_graph=True)
        loss = (gradient.square().sum(1).sqrt() - 1).square().mean()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


class Boundary(nn.Module):
    """Is held to 0 at 0, by a power whose second derivative is infinite there."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x):
        return x.pow(1.5) * self.inner(x)  # <-


@fault("aten.pow.Tensor_Scalar", "backward", node="PowBackward0", line=marked_line(Boundary))
def a_second_derivative():
    model = Boundary()
    optimizer = sgd(model)
    for step, given, _ in data():
        x = given.abs().mul_(float(step != BAD)).requires_grad_()
        first = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        loss = second.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)
