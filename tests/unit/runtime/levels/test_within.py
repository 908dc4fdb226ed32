"""Transforms of torch.func take gradients by ``autograd.grad``: no values are to be read within them."""

from contextlib import suppress

import pytest
import torch
from torch import func, nn

from nandiag.events import ProbeDark

INPUT = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])


def weighed(net, weights):
    """A loss that is a product with a number of each sample."""

    def loss(one, x, y, w):
        return w * (func.functional_call(net, one, (x[None],)).squeeze() - y) ** 2

    return func.vmap(func.grad(loss), (None, 0, 0, 0))(weights, INPUT, torch.ones(2), torch.tensor([1.0, 0.0]))


def asked_within(net, _):
    """A loss that takes gradients by itself, which it is then derived by."""

    def loss(x):
        (own,) = torch.autograd.grad(net(x[None]).sum() * x[0] * 2.0, x, create_graph=True)
        return (own**2).sum() * x[1]

    return func.vmap(func.grad(loss))(INPUT)


def kept_within(net, _):
    def loss(x):
        made = net(x[None]).sum() * x[0]
        torch.autograd.grad(made, x, retain_graph=True)
        return made * x[1]

    return func.vmap(func.grad(loss))(INPUT)


def refused_within(net, _):
    """A backward within a transform is refused by torch, which the script may live with."""

    def loss(x):
        made = net(x[None]).sum() * x[0]
        with suppress(RuntimeError):
            (made * 2.0).backward()
        return made

    return func.vmap(func.grad(loss))(INPUT)


WAYS = {
    "refused_within": refused_within,
    "weighed": weighed,
    "asked_within": asked_within,
    "kept_within": kept_within,
    "grad": lambda net, _: func.grad(lambda x: net(x).sum() * x[0, 0])(INPUT),
    "valued": lambda net, _: func.vmap(func.grad_and_value(lambda x: net(x[None]).sum() * x[0]))(INPUT),
    "in_one_vmap": lambda net, _: func.vmap(lambda x: func.grad(lambda y: net(y[None]).sum() * x[0])(x))(INPUT),
    "jacrev": lambda net, weights: func.jacrev(lambda one: func.functional_call(net, one, (INPUT,)) * 2.0)(weights),
    "mapped_jacrev": lambda net, _: func.vmap(func.jacrev(lambda x: net(x[None]) * x[0]))(INPUT),
    "jacfwd": lambda net, _: func.vmap(func.jacfwd(lambda x: net(x[None]) * x[0]))(INPUT),
    "hessian": lambda net, _: func.vmap(func.hessian(lambda x: net(x[None]).sum() * x[0]))(INPUT),
    "jvp": lambda net, _: func.jvp(lambda x: net(x) * x[0, 0], (INPUT,), (INPUT,)),
    "vjp": lambda net, _: func.vmap(lambda x: func.vjp(lambda y: net(y[None]).sum() * x[0], x)[1](x[0]))(INPUT),
    "twice": lambda net, _: func.grad(lambda x: func.grad(lambda y: net(y).prod() * y[0, 0])(x).sum() * x[0, 1])(INPUT),
}


@pytest.mark.parametrize("level", ["step", "module", "op"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_read_within_a_transform(work, way, level):
    worker = work(level=level)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for _ in range(3):
        WAYS[way](net, {name: one.detach() for name, one in net.named_parameters()})
    worker.sentinel.finish()
    assert worker.events(ProbeDark) == []
    assert worker.harms == []
