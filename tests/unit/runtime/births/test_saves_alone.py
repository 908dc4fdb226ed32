"""What was saved bad is made again without anything of the script's: its own functions run once, as without us."""

import io
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from nandiag.events import ProbeDark
from nandiag.runtime.births.files.plain import is_plain, is_torchs_own

calls = []


def halves(x):
    calls.append(1)
    return x * 0.5


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return halves(x)


@torch.library.custom_op("nandiag_test_saves::halves", mutates_args={})
def halves_op(x: torch.Tensor) -> torch.Tensor:
    return halves(x)


@torch.library.custom_op("nandiag_test_saves::breaks", mutates_args={})
def breaks(x: torch.Tensor) -> torch.Tensor:
    return halves(x) / 0


class Second:
    def __index__(self):
        calls.append(1)
        return 1


class Noted:
    def __deepcopy__(self, memo):
        calls.append(1)
        return self


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(1)
        return super().__torch_function__(func, types, args, kwargs or {})


def copied(x):
    x.note = Noted()
    return x.__deepcopy__({})


def packed(x):
    with torch.autograd.graph.saved_tensors_hooks(halves, lambda one: one):
        return x.requires_grad_() * x


def hooked(x):
    x.requires_grad_().register_hook(halves)
    with torch.enable_grad():
        return torch.autograd.grad((x * x).sum(), [x])[0]


WAYS = {
    "apply_": lambda x: x.clone().apply_(halves),
    "map_": lambda x: x.clone().map_(x, lambda one, _: halves(one)),
    "vmap": torch.func.vmap(halves),
    "gradient": torch.func.grad(lambda x: halves(x).sum()),
    "function": Halves.apply,
    "custom": halves_op,
    "breaks": breaks,
    "index": lambda x: x.narrow(0, Second(), 2),
    "subclass": lambda x: (x.as_subclass(Own) * 0.5).as_subclass(torch.Tensor),
    "copy": copied,
    "packed": packed,
    "hooked": hooked,
}


def train():
    """Make a few steps, for what is bad from then on to be none of what came before training."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return model


def save(tensor):
    torch.save({"model": {"some.metric": tensor}}, io.BytesIO())


def births(worker):
    assert worker.events(ProbeDark) == []
    return [birth for saved in worker.capture.births.saves._files.values() for birth in saved.bad.values()]


@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_the_scripts_is_called_as_often_as_without_us(way, work):
    def called():
        calls.clear()
        train()
        made = WAYS[way](torch.ones(4, 4))
        save(made.detach() * 0 / 0 if made.requires_grad else made * 0 / 0)
        save((made * 0 - 1).log())
        return len(calls)

    plain = called()
    assert plain > 0
    worker = work()
    # Torch itself asks a number of the script's once more where any mode is on.
    assert called() == plain + (way == "index")
    assert births(worker)


def test_an_op_of_the_scripts_is_not_run_in_float64_where_ops_are_watched(work):
    worker = work(level="op")
    calls.clear()
    train()
    for _ in range(3):
        with torch.no_grad():
            save(breaks(torch.ones(4, 4)))
    assert len(calls) == 3
    assert [one.op for one in births(worker)] == ["nandiag_test_saves.breaks.default"]


@pytest.mark.parametrize("way", ["breaks", "custom", "function", "vmap", "map_"])
def test_a_function_that_made_a_weight_bad_before_training_is_called_once(way, work):
    worker = work()
    calls.clear()
    model = nn.Linear(4, 4)
    given = torch.full((4, 4), 3e38)
    with torch.no_grad():
        model.weight.copy_(WAYS[way](given) * 10)
    once = len(calls)
    model.weight.data = WAYS[way](given / 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    assert len(calls) == 2 * once
    assert worker.events(ProbeDark) == []


def divided(x):
    return x / (x - x)  # the line


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


PLAIN = {
    "einsum": lambda x: torch.einsum("ij,jk->ik", divided(x), x),
    "named": lambda x: torch.stack(Pair(divided(x), x)),
    "slices": lambda x: divided(x)[1:, ..., None],
    "functional": lambda x: functional.max_pool1d(divided(x), 2),
    "copy": lambda x: divided(x.__deepcopy__({})),
    "gradient": lambda x: divided(torch.autograd.grad(x.requires_grad_().square().sum(), [x])[0]),
    "reflected": lambda x: 2.0 ** divided(x),
    "averaged": lambda x: torch._foreach_lerp([divided(x)], [x], 0.5)[0],
}


@pytest.mark.parametrize("way", PLAIN)
def test_what_torch_alone_computes_is_still_told(way, work):
    worker = work()
    train()
    save(PLAIN[way](torch.ones(4, 4)).detach())
    (birth,) = births(worker)
    assert birth.op == "aten.div.Tensor"


def test_what_torch_warns_of_is_warned_of_as_often(work):
    work()
    train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(functional.mse_loss(torch.zeros(4), torch.zeros(4, 1), reduction="none") * 0 / 0)
    assert len(caught) == 1


def test_a_generator_of_the_scripts_own_goes_on_where_it_was(work):
    worker = work()
    train()
    own = torch.Generator().manual_seed(3)
    made = torch.rand(4, generator=own)
    torch.rand(4, generator=own)
    before = own.get_state()
    save(made * 0 / 0)
    assert torch.equal(own.get_state(), before)
    assert births(worker)[0] is not None


def test_what_was_read_before_it_was_written_over_is_not_made_of_what_is_there_now(work):
    """The line that divided by numbers, and not by the zeros that came behind it, is not named."""
    scale = torch.tensor([1.0, 4.0])
    worker = work()
    train()
    with torch.no_grad():
        kept = torch.ones(2) / scale
        scale.mul_(0)
        save((kept * scale) / scale)
    assert births(worker) == [None]


def test_what_holds_a_function_of_the_scripts_is_none_of_torchs():
    assert not is_torchs_own(torch.func.vmap(halves))
    assert not is_torchs_own(Halves.apply)
    assert not is_torchs_own(torch.ops.nandiag_test_saves.halves.default)
    assert is_torchs_own(torch.ops.aten.mul.Tensor)
    assert is_torchs_own(torch.Tensor.__rpow__)
    assert not is_plain(slice(Second()))
    assert not is_plain({"one": [halves]})
