"""What a forward leaves in attributes and hooks for the loss leads back into it, in the micro-step that left it."""

import contextlib

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop

BAD = 2
KEPT, NAMED = [], {}


class Router(nn.Module):
    """Leaves what it balances by in an attribute, in a list and in a dict."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.parts, self.named = [], {}

    def forward(self, x, *, weight):
        shares = self.gate(x).softmax(-1) / weight  # the line
        self.aux = shares.square().mean()
        self.parts.append(shares.sum())
        self.named["mean"] = shares.mean()
        return self.gate(x)


class Tap:
    def __init__(self):
        self.seen = []

    def keep(self, _module, _args, output):
        self.seen.append(output)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale, self.weight = nn.Linear(4, 2), Scale(), 1.0

    def forward(self, x, *, weight):
        h = self.body(x)
        self.scale(h, weight)
        return h


class Scale(nn.Module):
    def forward(self, h, weight):
        return h / weight  # the line


def by_attribute():
    model = Router()
    return model, lambda: model.aux


def by_list():
    model = Router()
    return model, model.parts.pop


def by_dict():
    model = Router()
    return model, lambda: model.named["mean"]


def by_method_hook():
    model, tap = Scaled(), Tap()
    model.scale.register_forward_hook(tap.keep)
    return model, lambda: 2 * tap.seen[-1].mean()


def by_closure_hook():
    model, seen = Scaled(), {}
    model.scale.register_forward_hook(lambda _module, _args, output: seen.update(out=output))
    return model, lambda: 2 * seen["out"].mean()


def keep_globally(_module, _args, output):
    KEPT.append(output)
    NAMED["last"] = output


def by_global_hook():
    model = Scaled()
    model.scale.register_forward_hook(keep_globally)
    return model, lambda: KEPT[-1].mean() + NAMED["last"].sum()


WAYS = [by_attribute, by_list, by_dict, by_method_hook, by_closure_hook, by_global_hook]


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("ways", WAYS, ids=[one.__name__ for one in WAYS])
def test_what_is_left_leads_back_to_the_call_that_left_it(work, ways, part):
    worker = work(on_anomaly="stop")  # where the run goes on, a model with hooks of the script's is not run again
    model, left = ways()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 1):
            optimizer.zero_grad()
            for micro_step in range(3):
                weight = torch.zeros(()) if (step, micro_step) == (BAD, part) else torch.ones(())
                loss = model(torch.randn(5, 4), weight=weight).square().mean() + left()
                loss.backward()
            optimizer.step()
    look = worker.looked[0]
    assert (look.outcome, look.source, look.site.op) == ("found", "op", "aten.div.Tensor"), look
    assert look.site.source.endswith("# the line"), look
    assert (look.step, look.micro_step) == (BAD, part), look


def test_what_the_call_was_given_and_a_weight_are_left_by_nobody(work):
    class Keeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            self.given, self.held, self.twice = x, [self.layer.weight, self.layer(x)], self.layer(x)
            return self.twice

    worker = work()
    model = Keeper()
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4))
    entry = worker.capture.tape.entries[-1]
    assert [(place.name, ways) for place, ways in entry.sides] == [("held", [(-1,)]), ("twice", [()])]
