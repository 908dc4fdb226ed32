"""The checksum of replicas: one flipped bit changes it, and its turn comes seldom."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nandiag.runtime.together import replicas
from nandiag.runtime.together.replicas import AUTO, ReplicaCheck, _grouped, _sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_one_flipped_bit_changes_the_sum(dtype):
    tensor = torch.randn(5, 3).to(dtype)
    other = tensor.clone()
    assert _sum(tensor) == _sum(other)
    real = torch.view_as_real(other) if other.is_complex() else other
    real.view(replicas._BITS[real.element_size()])[2] ^= 1
    assert _sum(tensor) != _sum(other)


def test_many_weights_are_summed_in_runs_of_neighbours():
    names, sums = _grouped([f"w{index}" for index in range(130)], list(range(130)))
    assert len(names) == len(sums) == 44
    assert (names[0], names[-1]) == ("w0 to w2", "w129 to w129")
    assert sums != _grouped(list(names), [*range(129), 7])[1]


class Ddp(nn.Module):
    """What is asked of DDP."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.reducer = self.process_group = None
        self.require_forward_param_sync = True


@pytest.fixture
def steps(monkeypatch):
    """Run so many steps of a DDP model with ``every``; returns the steps at which sums were written."""
    told, model = [], Ddp()
    monkeypatch.setattr(replicas, "find_roots", lambda: [model])
    monkeypatch.setattr(replicas, "_group", lambda _: (0, 1))
    monkeypatch.setattr(replicas.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(replicas.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(replicas.RECORDER, "emit", told.append)

    def run(every, count, *, local=None, seconds=10.0):
        clock, capture = SimpleNamespace(step=0), SimpleNamespace(off=False, step_seconds=seconds)
        check = ReplicaCheck(clock, capture, every)
        for step in range(1, count + 1):
            clock.step = step
            model.require_forward_param_sync = step != local
            check.after_step(None, (), {})
            check.after_step(None, (), {})  # an optimizer within an optimizer
        return [one.step for one in told]

    return run


def test_every_so_many_steps(steps):
    assert steps(5, 21) == [5, 10, 15, 20]


def test_never(steps):
    assert steps(0, 500) == []


def test_by_itself_it_keeps_to_powers_of_two(steps):
    assert steps(AUTO, 200) == [16, 64, 128, 192]


def test_a_step_whose_gradients_were_not_shared_ends_it(steps):
    assert steps(5, 40, local=12) == [5, 10]


def test_hooks_of_the_scripts_own_may_average_among_some_ranks_only(steps, monkeypatch):
    monkeypatch.setattr(Ddp, "_comm_hooks", [object()], raising=False)
    assert steps(5, 40) == []
