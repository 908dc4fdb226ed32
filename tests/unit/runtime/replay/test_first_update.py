"""The first update of an optimizer of the script's own that had some of its state before, made again."""

import pytest
import torch
from torch import nn


class Curved(torch.optim.Optimizer):
    """Steps by an average of the gradient over one of its square, which the script brings up to date itself."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def measure(self):
        for group in self.param_groups:
            for weight in group["params"]:
                held = self.state[weight].setdefault("curve", torch.zeros_like(weight))
                held.addcmul_(weight.grad, weight.grad)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight)).lerp_(weight.grad, 0.1)
                weight.sub_(group["lr"] * (mean / state["curve"]))  # the line


def test_it_is_made_again_on_the_state_that_it_had_and_without_that_which_it_made(work):
    worker = work()
    torch.manual_seed(0)
    rows = nn.Embedding(6, 4)
    optimizer = Curved(rows.parameters())
    rows(torch.tensor([0, 2, 3, 5])).square().mean().backward()
    optimizer.measure()
    optimizer.step()
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 0), looked
    assert looked.site.source.rstrip().endswith("# the line")
    mean, curve = looked.inputs
    assert (curve.zeros, looked.outputs[0].nan) == (8, 8)  # of the rows that were not asked for; all others are finite
    assert mean.zeros == 8


class Squared(torch.optim.Optimizer):
    """Divides by the root of an average of the gradient's square, and only then brings the average up to date."""

    def __init__(self, params):
        super().__init__(params, {})
        self.state.update({weight: {"sq": torch.zeros_like(weight)} for weight in self.param_groups[0]["params"]})

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            sq = self.state[weight]["sq"]
            weight.sub_(0.1 * (weight.grad / sq.sqrt()))  # the line
            sq.lerp_(weight.grad.square(), 0.1)


def updated(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()


def found(worker):
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.method) == ("found", "op", "replay"), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts["began_of_zeros"] == ["sq"]
    return looked.inputs[1]


def test_it_is_made_again_on_state_of_zeros_that_it_has_written_over_since(work):
    worker = work()
    net = nn.Linear(3, 4)
    updated(net, Squared(net.parameters()))
    divisor = found(worker)
    assert divisor.zeros == divisor.numel


def test_so_is_the_first_update_behind_a_checkpoint_with_zeros_in_places_and_its_weights_were_finite(work):
    worker = work()
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    optimizer = Squared(net.parameters())
    for state in optimizer.state.values():
        state["sq"].fill_(1.0)
    updated(net, optimizer)
    saved, state = {name: one.clone() for name, one in net.state_dict().items()}, optimizer.state_dict()
    for one in state["state"].values():
        one["sq"][:2] = 0.0
    net.load_state_dict(saved)
    del saved
    optimizer.load_state_dict(state)
    updated(net, optimizer)
    divisor = found(worker)
    assert 0 < divisor.zeros < divisor.numel


class Wavering(torch.optim.Optimizer):
    """Divides by what it has forgotten when it is asked again."""

    by = 1.0

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        by, self.by = self.by, 1.0
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad / by)


@pytest.mark.parametrize("behind", [False, True])
def test_a_write_ahead_of_a_finite_forward_did_not_make_the_weights_bad(work, behind):
    worker = work()
    torch.manual_seed(0)
    net = nn.Linear(3, 4)
    optimizer = Wavering(net.parameters())
    updated(net, optimizer)
    optimizer.zero_grad()
    if not behind:
        net.load_state_dict({name: one.clone() for name, one in net.state_dict().items()})
    net(torch.ones(2, 3)).square().mean().backward()
    if behind:
        net.load_state_dict({name: one.clone() for name, one in net.state_dict().items()})
    optimizer.by = 0.0
    optimizer.step()
    worker.sentinel.finish()
    (looked,) = worker.looked
    assert (looked.outcome, looked.method) == (("found", "tape") if behind else ("finite", "replay")), looked
