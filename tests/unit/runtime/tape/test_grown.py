"""A part that joins a model in mid-training: its first call may write into its buffers, and does harm by it."""

import torch
from torch import nn

from nandiag.runtime.names.grown import GROWTH
from nandiag.runtime.tape.calls.habits import _MOST_GROWTHS


class Normed(nn.Module):
    """Has a power iteration in its forward, which keeps its vector in a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4) + 0.1)
        self.register_buffer("u", torch.ones(4))

    @torch.no_grad()
    def iterate(self):
        v = self.weight.t() @ self.u
        v = v / v.norm()
        u = self.weight @ v
        self.u.copy_(u / u.norm())
        return v

    def forward(self, x):
        v = self.iterate()
        sigma = self.u.clone() @ self.weight @ v
        return nn.functional.linear(x, self.weight / sigma)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Normed()])

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def grown(net):
    new = Normed()
    nn.init.zeros_(new.weight)
    net.blocks.append(new)
    return new


def train(net, optimizer, steps, x):
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x).square().mean() + net(-x).square().mean()).backward()
        optimizer.step()


def test_a_buffer_of_a_part_that_joins_is_kept_before_its_first_call(work):
    worker, net = work(on_anomaly="continue"), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    train(net, optimizer, 4, torch.randn(8, 4))
    optimizer.add_param_group({"params": grown(net).parameters()})
    train(net, optimizer, 1, torch.randn(8, 4))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 4), looked
    assert (looked.site.op, looked.site.source.strip()) == ("aten.div.Tensor", "v = v / v.norm()"), looked


def test_what_joins_another_model_is_nothing_to_it(work):
    worker, net, other = work(), Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    train(net, optimizer, 4, torch.randn(8, 4))
    habit = worker.capture.known[id(net)]
    assert habit._known
    grown(other)
    net.blocks[0].u = torch.ones(4)  # another in its place
    assert habit._known
    net.blocks[0].register_buffer("late", torch.ones(1))
    assert not habit._known


def test_a_forward_that_registers_each_time_is_learnt_at_last(work):
    worker, net = work(), Net()
    net(torch.ones(2, 4)).sum().backward()
    habit = worker.capture.known[id(net)]
    for turn in range(_MOST_GROWTHS + 2):
        net.register_buffer(f"late{turn}", torch.ones(1))
        net(torch.ones(2, 4)).sum().backward()
    known = dict(habit._known)
    net.register_buffer("last", torch.ones(1))
    assert known == habit._known != {}
    assert habit in GROWTH.followers
