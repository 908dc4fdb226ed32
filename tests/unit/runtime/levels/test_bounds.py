"""What torch's own modules cannot put out: each rule against what they do, and all that a rule does not hold for."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.runtime.levels import bounds
from nandiag.runtime.levels.bounds import ROOM, bound_of, is_free
from nandiag.runtime.look import extremes

SHAPES = {1: (32, 16, 24), 2: (8, 16, 12, 12), 3: (8, 16, 6, 6, 6)}
MADE = [
    (nn.ReLU, 1), (nn.ReLU6, 1), (nn.GELU, 1), (lambda: nn.GELU("tanh"), 1), (nn.SiLU, 1), (nn.Tanh, 1),
    (nn.Hardswish, 1), (nn.Flatten, 1), (lambda: nn.LeakyReLU(0.2), 1), (lambda: nn.LeakyReLU(-3.0), 1),
    (lambda: nn.Dropout(0.9), 1), (lambda: nn.Dropout1d(0.5), 1), (lambda: nn.Dropout2d(0.5), 2),
    (lambda: nn.Dropout3d(0.5), 3), (lambda: nn.Conv1d(16, 8, 5, padding=2), 1),
    (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=4), 2), (lambda: nn.Conv3d(16, 4, 3, dilation=2, padding=2), 3),
    (lambda: nn.LayerNorm(24), 1), (lambda: nn.LayerNorm(24, elementwise_affine=False), 1),
    (lambda: nn.GroupNorm(4, 16), 2), (lambda: nn.RMSNorm(24), 1), (lambda: nn.RMSNorm(24, eps=1e-6), 1),
    (lambda: nn.BatchNorm1d(16), 1), (lambda: nn.BatchNorm2d(16), 2), (lambda: nn.BatchNorm3d(16, affine=False), 3),
    (lambda: nn.MaxPool1d(3, 1, 1), 1), (lambda: nn.MaxPool2d(3, 1, 1), 2), (lambda: nn.AvgPool1d(3, 1), 1),
    (lambda: nn.AvgPool2d(3, 1), 2), (lambda: nn.AdaptiveAvgPool2d(11), 2), (lambda: nn.Linear(24, 40), 1),
    (lambda: nn.Linear(24, 40, bias=False), 1),
]  # fmt: skip


def given(dims, scale, offset):
    return scale * torch.randn(SHAPES[dims]) + offset


def asked(module, x):
    output = module(x)
    with torch.no_grad():
        return bound_of(module, x.norm().item(), output), output.norm().item()


@pytest.mark.parametrize(
    ("scale", "offset"), [(1e-9, 0.0), (1.0, 0.0), (1.0, 1e4), (1e6, -1e9), (0.0, 1e8), (0.0, 0.0)]
)
@pytest.mark.parametrize(("make", "dims"), MADE)
def test_no_output_exceeds_its_bound(make, dims, scale, offset):
    torch.manual_seed(0)
    module = make()
    with torch.no_grad():
        for one in module.parameters():
            one.mul_(3.0).add_(0.5)
    bound, norm = asked(module, given(dims, scale, offset))
    assert bound is not None
    assert norm <= bound * 1.0001


def test_each_rule_is_tried():
    assert {type(make()) for make, _ in MADE} == set(bounds._RULES)


def hooked(module):
    module.register_forward_hook(lambda _, __, output: output * math.inf)
    return module


def before(module):
    module.register_forward_pre_hook(lambda _, words: words)
    return module


def with_own_forward(module):
    module.forward = lambda x: x / 0.0
    return module


def written(module, value):
    module.weight.data[0, 0] = value  # no version of the weight tells of it
    return module


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 0.0


UNBOUNDED = [
    lambda: hooked(nn.Linear(24, 40)), lambda: before(nn.Linear(24, 40)), lambda: with_own_forward(nn.Linear(24, 40)),
    lambda: written(nn.Linear(24, 40), math.nan), lambda: written(nn.Linear(24, 40), math.inf),
    lambda: written(nn.Linear(24, 40), 1e30), lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(24, 40)),
    lambda: Own(24, 40), lambda: nn.BatchNorm1d(16).eval(), lambda: nn.LayerNorm(24, eps=0.0), nn.Sigmoid,
    lambda: nn.Conv1d(16, 8, 5, padding=2, padding_mode="circular"), lambda: nn.Dropout(1.0),
]  # fmt: skip


@pytest.mark.parametrize("make", UNBOUNDED)
def test_what_no_rule_holds_for_is_not_bounded(make):
    bound, _ = asked(make(), given(1, 1.0, 0.0))
    assert bound is None


def test_weights_that_are_larger_than_what_comes_out_are_not_read():
    assert asked(nn.Linear(24, 40), torch.randn(100, 24))[0] is not None
    assert asked(nn.Linear(24, 40), torch.randn(10, 24))[0] is None


def test_an_average_that_is_divided_by_the_scripts_own_number_is_not_bounded():
    module, x = nn.AvgPool2d(3, divisor_override=1), given(2, 1.0, 0.0)
    assert bound_of(module, x.norm().item(), module(x)) is None


@pytest.mark.parametrize("norm", [math.nan, math.inf, ROOM, 1e38])
def test_an_input_that_is_bad_or_large_bounds_nothing(norm):
    assert bound_of(nn.ReLU(), norm, torch.ones(3)) is None


@pytest.mark.parametrize(
    "output", [torch.ones(3, dtype=torch.bfloat16), torch.ones(3).to_sparse(), torch.ones(3, device="meta")]
)
def test_other_kinds_of_tensors_are_not_bounded(output):
    assert bound_of(nn.ReLU(), 1.0, torch.ones(3)) == 1.0
    assert bound_of(nn.ReLU(), 1.0, output) is None


def test_global_hooks_and_a_forward_that_was_put_in_its_place(monkeypatch):
    module, x = nn.Linear(24, 40), given(1, 1.0, 0.0)
    with torch.no_grad():
        handle = hooks.register_module_forward_hook(lambda *_: None)
        assert bound_of(module, 1.0, module(x)) is None
        handle.remove()
        assert bound_of(module, 1.0, module(x)) is not None
        monkeypatch.setattr(nn.Linear, "forward", lambda self, y: y @ self.weight.T)
        assert bound_of(module, 1.0, module(x)) is None


def test_under_a_mode_nothing_is_bounded():
    assert is_free()
    with torch.device("cpu"):
        assert not is_free()
    with TorchDispatchMode():
        assert not is_free()


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def train(model, steps, at=None, write=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        if step == at:
            write(model)
        optimizer.zero_grad()
        model(torch.randn(512, 32)).square().mean().backward()
        optimizer.step()


def test_most_of_what_torchs_own_modules_put_out_is_not_read(work, monkeypatch):
    read = []
    for place in (extremes, bounds):
        real = place.norm_of
        monkeypatch.setattr(place, "norm_of", lambda data, real=real: read.append(data.numel()) or real(data))
    worker, model = work(level="module"), nn.Sequential(Deep(), Deep())
    counts = []
    for _ in range(3):
        read.clear()
        train(model, 1)
        counts.append(sum(read))
    assert counts[1] == counts[2] < 0.3 * counts[0]
    assert counts[1] >= 3 * 512 * 32  # the batch, and what each block adds up
    assert not worker.looked


def spoil(value):
    def write(model):
        model[0].up.weight.data[3, 5] = value

    return write


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_bad_weight_is_found_where_it_is_used_though_nothing_told_of_it(work, value):
    worker = work(level="module", max_replays=0)
    train(nn.Sequential(Deep(), Deep()), 5, 3, spoil(value))
    look = next(one for one in worker.looked if one.outcome == "found")
    assert (look.step, look.site.module, look.inputs[0].bad) == (3, "0.up", False)


def test_what_is_not_finite_in_spite_of_its_bound_is_found_all_the_same(work, monkeypatch):
    """As where the machine computes wrong."""
    worker, calls, real = work(level="module", max_replays=0), [], functional.linear

    def linear(*words):
        calls.append(words)
        return real(*words) * (math.inf if len(calls) == 13 else 1.0)  # the first of the fourth step's four

    monkeypatch.setattr(functional, "linear", linear)
    train(nn.Sequential(Deep(), Deep()), 5)
    look = next(one for one in worker.looked if one.outcome == "found")
    assert (look.step, look.site.module, look.inputs[0].bad) == (3, "0.up", False)
