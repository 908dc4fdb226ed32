"""A table of small faults: what the replay names, and that neither it nor the watching changes a single bit.

Each fault is a loop as a script would have it; the line at fault ends in ``# <-``. It runs twice, without nandiag and
with it, and returns what it trained, so that both runs can be compared bit for bit.
"""

# ruff: noqa: S311, NPY002 - every generator that a script may use is used on purpose

import contextlib
import functools
import inspect
import io
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

FAULTS = []
BAD = 2


def fault(op, phase, *, source="op", step=BAD, **more):
    """Put a loop into the table with what the replay should say of it."""

    def add(function):
        FAULTS.append(pytest.param(function, {"op": op, "phase": phase, "source": source, "step": step, **more},
                                   id=function.__name__))  # fmt: skip
        return function

    return add


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


# ---------------------------------------------------------------------- forward


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        floor = 0.0 if self.calls == BAD + 1 else 0.5
        return (x.abs() * 0 + floor).log()  # <-


def _log_in_forward():
    model = net(Logarithm())
    return plainly(model, torch.optim.Adam(model.parameters()), lambda step, out, y: (out - y).square().mean())


FAULTS.append(pytest.param(_log_in_forward, {
    "op": "aten.log.default", "phase": "forward", "source": "op", "step": BAD, "module": "1",
    "line": marked_line(Logarithm),
}, id="log_in_a_module"))  # fmt: skip


@fault("aten.div.Tensor", "forward", module="gate")
def a_module_that_is_used_twice():
    class Gate(nn.Module):
        def forward(self, x, by):
            return x / by  # <-

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.gate = nn.Linear(4, 3), Gate()

        def forward(self, x, by):
            return self.gate(self.gate(self.first(x), torch.ones(())), by)

    model = Twice()
    optimizer = sgd(model)
    for step, x, y in data():
        loss = (model(x, torch.tensor(float(step != BAD))) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.exp.default", "forward", module="1")
def overflow_with_dropout_and_every_generator():
    class Noisy(nn.Module):
        def forward(self, x):
            scale = 200.0 if self.bad else 1.0
            noise = torch.randn_like(x) * random.random() * float(np.random.random())
            return torch.exp(x.abs() + scale) + noise  # <-

    model = net(Noisy(), nn.Dropout(0.5))
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        loss = (model(x) - y + torch.rand(())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.log.default", "forward", module="")
def only_the_very_same_draw_does_harm():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            drawn = torch.rand(()) + random.random() + np.random.random()
            return self.layer(x) * (drawn - self.target).abs().log()  # <-

    model = Drawing()
    optimizer = sgd(model)
    for step, x, y in data():
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        drawn = torch.rand(()) + random.random() + np.random.random()
        model.target = drawn if step == BAD else -1
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.sqrt.default", "forward", module="2")
def batch_norm_and_its_running_statistics():
    class Root(nn.Module):
        def forward(self, x):
            return torch.sqrt(x - (10.0 if self.bad else -10.0))  # <-

    model = net(nn.BatchNorm1d(8), Root())
    optimizer = sgd(model, momentum=0.9)
    for step, x, y in data():
        model[2].bad = step == BAD
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.exp.default", "forward", module="1")
def under_autocast():
    class Exponent(nn.Module):
        def forward(self, x):
            return torch.exp(x.half() * 0 + (12.0 if self.bad else 1.0)).float()  # <-

    model = net(Exponent())
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def checkpointing(*, use_reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(4, 4)

        def inner(self, x):
            return torch.log(self.up(x).abs() * (not self.bad))  # <-

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 3))
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


FAULTS.extend(
    pytest.param(functools.partial(checkpointing, use_reentrant=reentrant), {
        "op": "aten.log.default", "phase": "forward", "source": "op", "step": BAD, "module": "1",
        "line": marked_line(checkpointing),
    }, id=f"checkpointing_reentrant_{reentrant}")
    for reentrant in (True, False)
)  # fmt: skip


# ---------------------------------------------------------------------- loss


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


# ---------------------------------------------------------------------- backward


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


# ---------------------------------------------------------------------- what was bad before


BAD_BATCH = torch.tensor([[math.nan, 1, 1, 1]])


@fault("aten.addmm.default", "data", source="input")
def a_bad_batch():
    model = net()
    optimizer = sgd(model)
    for step, x, _ in data():
        loss = model(BAD_BATCH if step == BAD else x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.reciprocal.default", "loss", module=None)
def a_weight_by_targets_of_which_only_the_copy_is_left():
    """As on a device: what the loader gave is gone when the loss is computed of what was copied."""
    model = net()
    optimizer = sgd(model)
    kinds = [torch.arange(5) % (2 if step == BAD else 3) for step in range(4)]
    for _, x, _ in data():
        kind = kinds.pop(0).to("cpu:0")  # another device than "cpu", so that torch copies
        scores = model(x)
        share = len(kind) / torch.bincount(kind, minlength=3)  # <-
        loss = F.cross_entropy(scores, kind, share, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "loss", module=None, live={})
def a_copy_is_not_written_into_twice():
    """It cannot be made again, so that what the script wrote into it is there already."""
    model = net()
    optimizer = sgd(model)
    targets = [torch.randn(5, 3) for _ in range(4)]
    for step, x, _ in data():
        held = targets.pop(0).double()
        held += step
        gap = ((model(x) - held) * (step != BAD)).abs()
        loss = (gap / gap.detach().sum()).square().sum()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert bool((held.mean() - step).abs() < 1.5), "written into again"
    return model, optimizer


@fault("aten.log.default", "forward", module=None, step=0)
def a_first_step_without_any_module():
    weight = nn.Parameter(torch.randn(4, 1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step, x, _ in data():
        loss = torch.log((x @ weight).square().mean() * (step != 0))  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.ParameterList([weight]), optimizer


@fault("aten.log.default", "loss", module=None, step=0)
def features_made_before_training():
    """The batches that they were made of are gone, and so they are taken as they are."""
    encoder, model = nn.Linear(4, 4), net()
    optimizer = sgd(model)
    with torch.no_grad():
        features = torch.cat([encoder(batch) for batch in list(torch.randn(20, 4).split(5))])
        features = features / 10
    for step in range(4):
        floor = 1.0 if step else -1.0
        loss = (model(features[step * 5 : step * 5 + 5]).abs() + floor).log().mean()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "loss", module=None)
def inner_steps_on_weights_that_are_swapped_in():
    """As in MAML: the second call is made with weights that the first one's gradients made."""
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        weights = dict(model.named_parameters())
        for _ in range(2):
            inner = (torch.func.functional_call(model, weights, (x,)) - y).square().mean()
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: one - 0.05 * by for (name, one), by in zip(weights.items(), gradients, strict=True)}
        wanted = torch.full((), float(step != BAD))
        loss = (torch.func.functional_call(model, weights, (x,)) - y).square().mean() * (wanted / wanted)  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.log.default", "loss", module=None)
def buffers_that_are_swapped_in_stay_as_they_are():
    model = net(nn.BatchNorm1d(8))
    tensors = {name: one.detach().clone() for name, one in model.state_dict().items()}
    trained = [tensors[name].requires_grad_() for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for step, x, y in data():
        moved = {name: one if one.requires_grad else one.clone() for name, one in tensors.items()}
        half = torch.func.functional_call(model, moved, (x,)).detach()
        output = half / 2 + torch.func.functional_call(model, tensors, (x,))
        loss = ((output - y).square() * (step != BAD)).mean().log()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.load_state_dict(tensors)
    model.register_buffer("moved", moved["1.running_mean"])
    return model, optimizer


@fault("aten.lift_fresh.default", "data", module=None)
def a_batch_that_the_script_makes():
    model = net()
    optimizer = sgd(model)
    for step, x, _ in data():
        if step == BAD:
            x = torch.tensor([[math.nan, 1, 1, 1]])  # noqa: PLW2901  # <-
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.log.default", "loss", module=None)
def a_running_mean_in_a_plain_object():
    class Mean:
        value = torch.ones(())

        def __call__(self, new):
            self.value = 0.9 * self.value + 0.1 * new.log()  # <-
            return self.value

    model, mean = net(), Mean()
    return plainly(
        model, sgd(model), lambda step, out, y: (out * mean(y.square().sum() * (step != BAD))).square().mean()
    )


@fault("aten.div.Tensor", "data", module=None)
def a_loaders_batch_normalised_in_the_loop():
    samples = torch.randn(20, 4)
    samples[5 * BAD : 5 * BAD + 5] = 1.0
    model = net()
    optimizer = sgd(model)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), 5):
        x = (x - x.mean()) / x.std()  # noqa: PLW2901  # <-
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "data", module=None)
def data_preparation():
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        x = x * (step != BAD)  # noqa: PLW2901
        x = (x - x.mean(0)) / x.std(0)  # noqa: PLW2901  # <-
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.full.default", "data", module=None)
def a_buffer_that_was_filled_in_the_middle():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x):
            return x * self.scale

    model = net(Scaled())
    optimizer = sgd(model)
    for step, x, y in data():
        if step == BAD:
            model[1].scale = torch.full((8,), math.nan)  # <-
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


# ---------------------------------------------------------------------- optimizers


@fault("aten.log.default", "loss", module=None, step=BAD + 1)
def two_optimizers_and_the_second_is_hit():
    critic, maker = net(), nn.Linear(3, 4)
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    for step, _, y in data():
        fake = maker(y)
        loss = critic(fake.detach()).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = (critic(fake).square().mean() * (step != BAD)).log()  # <-
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    return nn.ModuleList([critic, maker]), *optimizers


@fault("aten.log.default", "loss", module=None)
def two_optimizers_and_the_first_is_hit_while_a_graph_is_open():
    """The maker's graph, batch norm and all, is needed after the replay: no version of what it saved may move."""
    critic, maker = net(nn.BatchNorm1d(8)), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    for step, _, y in data():
        fake = maker(y)
        loss = (critic(fake.detach()).square().mean() * (step != BAD)).log()  # <-
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = fake.square().mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    return nn.ModuleList([critic, maker]), *optimizers


@fault("aten.log.default", "loss", module=None)
def a_closure():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for step, x, y in data():

        def closure(x=x, y=y, step=step):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss = (loss * (step != BAD)).log() if step == BAD else loss  # <-
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


@fault("aten.log.default", "forward", module=None)
def a_closure_that_calls_no_module():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for step, x, y in data():

        def closure(x=x, y=y, step=step):
            optimizer.zero_grad()
            loss = (x @ model[0].weight.T @ model[-1].weight.T - y).square().mean()
            loss = (loss * (step != BAD)).log() if step == BAD else loss  # <-
            loss.backward()
            return loss

        optimizer.step(closure)
    return model, optimizer


# ---------------------------------------------------------------------- in place


@fault("aten.div_.Tensor", "loss", module=None)
def in_place_in_the_loss():
    model = net()

    def loss_of(step, out, y):
        error = (out - y).square()
        error.div_(torch.tensor(float(step != BAD)))  # <-
        return error.mean()

    return plainly(model, sgd(model), loss_of)


@fault("aten.div.Tensor", "loss", module=None)
def rows_filled_one_by_one():
    model = net()

    def loss_of(step, out, y):
        rows = torch.zeros(5)
        for index in range(5):
            rows[index] = out[index].sum() / torch.tensor(float((step, index) != (BAD, 3)))  # <-
        return rows.square().mean()

    return plainly(model, sgd(model), loss_of)


# ---------------------------------------------------------------------- what a module sets anew


class Power(nn.Module):
    """Power iteration, which gives its buffer a new tensor each time, and is called twice a step."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.calls = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 3)), 0
        self.register_buffer("u", torch.randn(3))

    def forward(self, x):
        self.calls += 1
        v = self.weight.detach() @ self.u * (self.calls <= 2 * BAD)
        self.u = v / v.norm()  # <-
        return self.first(x) @ (self.weight / (self.u @ self.weight @ self.u)).T


class Recurrent(nn.Module):
    """Keeps its state as a plain attribute, which it sets anew."""

    def __init__(self):
        super().__init__()
        self.first, self.state, self.calls = nn.Linear(4, 3), torch.ones(3), 0

    def forward(self, x):
        self.calls += 1
        out = self.first(x) + self.state
        self.state = (out.detach().mean(0).abs() + 1) / torch.tensor(float(self.calls != 2 * BAD + 1))  # <-
        return out


def _set_anew(kind):
    model = kind()
    optimizer = sgd(model)
    for _, x, y in data():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() + (model(-x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return model, optimizer


for _model, _as in ((Power, "a_buffer_that_is_set_anew"), (Recurrent, "a_state_that_is_set_anew")):
    FAULTS.append(pytest.param(functools.partial(_set_anew, _model), {
        "op": "aten.div.Tensor", "phase": "forward", "source": "op", "step": BAD, "module": "",
        "line": marked_line(_model),
    }, id=_as))  # fmt: skip


# ---------------------------------------------------------------------- the table


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


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize(("function", "expected"), FAULTS)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    """By a replay, or by watching every op: the place is the same, and so is every bit of the training."""
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
        assert (looked.site.file, looked.site.line) == (__file__, line)
        assert looked.site.source.endswith("# <-")
    for name in ("module", "node", "forward_op"):
        if name in expected:
            assert getattr(looked.site, name) == expected[name]
    if "micro_step" in expected:
        assert looked.micro_step == expected["micro_step"]


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Softmax(-1)])
def test_an_infinite_sample_is_data_though_a_norm_makes_nan_of_it(work, norm):
    worker = work(on_anomaly="continue")
    model = nn.Sequential(norm, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = np.random.default_rng(0).random((6, 4)).astype(np.float32)
    data[2, 1] = math.inf
    model(torch.from_numpy(data)).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.phase) == ("input", "data")
    assert look.inputs[0].first_bad == (2, 1)


class Masked(nn.Module):
    def forward(self, x):
        return x * torch.tensor([1.0, 0.0, 1.0, 1.0])


def test_an_infinity_of_the_data_that_is_multiplied_by_zero_is_that_line(work):
    worker = work(on_anomaly="continue")
    model = nn.Sequential(Masked(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    far = torch.from_numpy(np.array([[1.0, math.inf, 2.0, 1.0]], dtype=np.float32))
    model(far).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", "aten.mul.Tensor")


class Choice:
    """What a policy may give out: an object of the script's own around a distribution."""

    def __init__(self, scores):
        self.kind = "choice"
        self.over = torch.distributions.Categorical(logits=scores, validate_args=False)


class Policy(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.scores = nn.Linear(4, 3)
        self.give = give

    def forward(self, x):
        return self.give(self.scores(x) + torch.log(x[:, :1]))  # the line


@pytest.mark.parametrize(
    "give", [Choice, lambda scores: (1, torch.distributions.Categorical(logits=scores, validate_args=False))]
)
def test_what_a_model_gives_out_in_an_object_leads_back_into_it(work, give):
    worker = work(on_anomaly="continue")
    model = Policy(give)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in (1.0, -1.0):
        given = model(torch.full((2, 4), first))
        chosen = given.over if isinstance(given, Choice) else given[1]
        optimizer.zero_grad()
        chosen.log_prob(torch.zeros(2, dtype=torch.long)).mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.outcome, look.source, look.site.op, look.site.function) == (
        "found",
        "op",
        "aten.log.default",
        "forward",
    )
    assert look.step == 1


def test_a_part_that_the_script_calls_by_itself_is_named_as_its_weights_are(work):
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), Logarithm()])

    class Logarithm(nn.Module):
        def forward(self, x):
            return torch.log(x)

    worker = work(on_anomaly="continue")
    flow = Flow()
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
    x = torch.randn(8, 4)
    for layer in flow.layers:
        x = layer(x)
    x.sum().backward()
    optimizer.step()
    assert (worker.looked[0].site.module, worker.looked[0].site.module_class) == ("layers.1", "Logarithm")


@pytest.mark.parametrize("target", [0, 1], ids=["smoothed", "masked_target"])
def test_a_mask_in_a_loss_is_told_at_the_loss(work, target):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    mask = torch.tensor([False, True, False])
    scores = model(torch.randn(5, 4)).masked_fill(mask, -math.inf)
    F.cross_entropy(scores, torch.full((5,), target), label_smoothing=0.1 * (target == 0)).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", ("aten.sum.dim_IntList", "aten.nll_loss_forward.default")[target])
    assert "label_smoothing" in look.site.source
    assert look.facts["masked_at"][1] == look.site.line - 1


def test_a_causal_mask_that_is_upside_down_is_told(work):
    worker = work(on_anomaly="continue")
    attention, hidden = nn.MultiheadAttention(4, 1, batch_first=True), torch.ones(5, 5, dtype=torch.bool).triu(1)
    optimizer, x = sgd(attention), torch.randn(2, 5, 4)
    attention(x, x, x, attn_mask=~hidden)[0].square().mean().backward()
    optimizer.step()
    assert worker.looked[0].facts.get("upside_down") is True


def test_a_causal_mask_that_meets_padding_on_the_left_is_not_upside_down(work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.randn(2, 3, 4)).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -math.inf)
    scores = scores.masked_fill(torch.tensor([[True, False, False]]), -math.inf)
    scores.softmax(-1).square().mean().backward()
    optimizer.step()
    assert "upside_down" not in worker.looked[0].facts


def test_an_infinity_below_zero_in_the_data_is_no_mask_to_a_linear_layer(work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    low = torch.from_numpy(np.array([[1.0, -math.inf, 2.0, 1.0]], dtype=np.float32))
    model(low).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.phase) == ("input", "data")


def of_a_mask(work, fill, read):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.randn(2, 4)).masked_fill(torch.tensor([[True, True, True], [False, False, False]]), fill)
    read(scores).mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert look.source == "op"
    assert "masked_at" in look.facts
    return look.site.op


def test_a_row_of_which_a_mask_leaves_nothing_is_told_where_its_least_is_taken(work):
    assert of_a_mask(work, math.inf, lambda scores: scores.amin(1)) == "aten.amin.default"


def test_a_choice_that_is_masked_out_is_told_where_it_is_picked(work):
    chosen = torch.ones(2, 1, dtype=torch.long)
    assert of_a_mask(work, -math.inf, lambda scores: scores.gather(1, chosen)) == "aten.gather.default"


@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_the_number_that_a_loss_is_multiplied_by_before_backward(work, factor):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    loss = (model(torch.randn(5, 4)) * 0).sqrt().sum()
    (loss * factor).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.phase, look.facts.get("loss_factor")) == ("backward", None if factor == 1.0 else factor), look


@pytest.mark.parametrize(("last", "whole"), [(3.0, True), (3.5, None)])
def test_a_logarithm_of_counts(work, last, whole):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    model(torch.log(torch.tensor([[0.0, 1.0, 7.0, last]]))).sum().backward()
    optimizer.step()
    assert worker.looked[0].facts.get("whole") is whole, worker.looked
