"""The first update of an optimizer of the script's own that had some of its state before, made again."""

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
