"""A difference of two squares that is nothing but their rounding is told of an op that broke by it."""

import pytest
import torch
from torch import nn


def one_pass(x):
    m = x.mean(0)
    v = (x * x).mean(0) - m * m  # here
    return (x - m) / torch.sqrt(v)


def under_a_root(x):
    m = x.mean(0)
    v = torch.sub(x.pow(2).mean(0), m**2)  # here
    return (x - m) * (v.unsqueeze(0) * 2).rsqrt()


def of_moments_in_one(x):
    s = torch.stack([x.mean(0), x.square().mean(0)])
    v = s[1] - s[0] ** 2  # here
    return (x - s[0]) / torch.sqrt(v.clamp_min(0))


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("a", torch.zeros(12))
        self.register_buffer("b", torch.zeros(12))

    def forward(self, x):
        self.n += len(x)
        self.a += x.sum(0)
        self.b += x.square().sum(0)
        mean = self.a / self.n
        std = (self.b / self.n - mean.square()).sqrt()  # here
        return (x - mean) / std


def in_two_passes(x):
    m = x.mean(0).round()  # so that of far numbers nothing is left
    return (x - m) / (x - m).square().mean(0).sqrt()


def too_large_a_mean(x):
    m = x.sum(0) / 8
    return torch.sqrt((x * x).mean(0) - m * m)


def of_a_constant(x):
    c = x.cos()
    return (1 - c * c).sqrt() / (x[:, :1] * 0)


def less_a_small_part(x):
    m = x.mean(0)
    return torch.sub(x.abs().mean(0) / 1000, m.square(), alpha=1e-6).sqrt() * x


class Model(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.take, self.layer = take, nn.Linear(12, 1)

    def forward(self, x):
        return self.layer(self.take(x))


def origin(work, take, offset):
    torch.manual_seed(0)
    worker = work()
    model = Model(take)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.randn(16, 12)
        if step == 2 or isinstance(take, nn.Module):
            x[:, 1:] = 1e-3 * x[:, 1:] + offset * torch.linspace(1.0, 1.3, 11)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker.looked[0]


@pytest.mark.parametrize(
    "take", [one_pass, Running(), under_a_root, of_moments_in_one], ids=["mean", "running", "rsqrt", "one"]
)
def test_rounding_that_is_left_of_two_squares_is_told(work, take):
    told = origin(work, take, 3000.0).facts["lost"]
    assert (told["how"], told["dtype"]) == ("cancelled", "float32")
    assert told["site"]["op"] == "aten.sub.Tensor"
    assert told["site"]["source"].rstrip().endswith("# here")
    assert 1e6 < told["of"] < 1e8


NONE = {in_two_passes: 1e6, too_large_a_mean: 5.0, of_a_constant: 0.0, less_a_small_part: 3000.0}


@pytest.mark.parametrize(("take", "offset"), NONE.items())
def test_what_is_no_rounding_is_told_to_be_none(work, take, offset):
    assert origin(work, take, offset).facts.get("lost", {}) == {}
