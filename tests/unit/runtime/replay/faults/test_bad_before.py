"""What was bad before the step: batches, values that are kept, buffers; named, and no bit changes."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.unit.runtime.replay.faults.table import BAD, Table, data, each_of, named_without_a_trace, net, plainly, sgd

TABLE = Table()
fault = TABLE.fault


RATIO = torch.arange(5.0) / torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])  # the infinity at 4 is bounded where it is used


def of_a_table(divide):
    """A weight by a table with an infinity that is meant: at the fault another element breaks, where it is 0."""
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        weight = divide(RATIO[torch.tensor([4, 1, 2, 3, 0 if step == BAD else 1])])
        loss = ((model(x) - y).square().mean(-1) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.div.Tensor", "data", module=None)
def a_quotient_that_breaks_at_another_index_than_its_input_is_bad():
    return of_a_table(lambda ratio: ratio.clamp(max=1.0) / ratio)  # <-


@fault("aten.div_.Tensor", "data", module=None)
def a_quotient_in_place_that_breaks_at_another_index():
    return of_a_table(lambda ratio: ratio.clamp(max=1.0).div_(ratio))  # <-


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


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)


def test_weights_that_are_made_for_one_call_before_the_first_step(work):
    """A teacher's average, say, divided by what is 0 before its first update: nothing else holds it."""
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    sums = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    x = torch.randn(5, 4)
    with torch.no_grad():
        wanted = torch.func.functional_call(model, {name: one / 0.0 for name, one in sums.items()}, (x,)).tanh()
    (model(x) - wanted).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert look.site.op == "aten.div.Tensor", look
