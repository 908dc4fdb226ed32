"""An error that ends the script and speaks of NaN or infinities: what it speaks of is led back to the line."""

import pytest
import torch
from torch import nn

from nandiag.runtime.watch.told.spoken import spoken_of


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


class Sampler:
    def __init__(self):
        self.loss = torch.ones(3)

    def pick(self):
        weights = 1.0 / self.loss
        return int(torch.multinomial(weights / weights.sum(), 1))


def trained(sampler, steps):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        sampler.pick()
        model(torch.ones(1, 2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == steps - 1:
            sampler.loss[1] = 0.0
    return model, optimizer


def test_what_a_function_of_torchs_refuses_has_its_line(work):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    worker.sentinel.last.take(raised(sampler.pick))
    (harm,), looked = worker.harms, worker.looked[0]
    assert (harm.what, harm.step, harm.tensors[0].posinf) == ("output", 3, 1)
    assert (looked.outcome, looked.site.op) == ("found", "aten.reciprocal.default"), looked
    assert looked.site.source.strip() == "weights = 1.0 / self.loss"
    assert kept


def test_an_error_of_something_else_is_no_harm_whatever_its_frames_hold(work):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)

    def masked():
        mask = torch.full((2,), -torch.inf)
        raise KeyError(f"no such info in {len(mask)} batches")

    worker.sentinel.last.take(raised(masked))
    assert worker.harms == []
    assert worker.looked == []
    assert kept


def test_nan_goes_before_a_mask_and_the_innermost_frame_before_its_callers():
    def inner():
        mask, bad = torch.full((2,), -torch.inf), torch.tensor([torch.nan, 1.0])
        fine = torch.ones(2)
        raise ValueError(f"expected finite numbers, found nan among {len(mask) + len(fine) + len(bad)}")

    def outer():
        other = torch.tensor([torch.nan])
        inner()
        return other

    spoken = spoken_of(raised(outer))
    assert [one.shape for one in spoken] == [(2,)]
    assert spoken[0].isnan().any()


@pytest.mark.parametrize(
    ("words", "told"),
    [("loss is nan", 1), ("contains either `inf`, `nan`", 1), ("Non-finite input", 1), ("infinite weights", 1),
     ("no information on nanometres", 0), ("out of memory", 0), ("", 0)],
)  # fmt: skip
def test_the_words_decide(words, told):
    def fails():
        held = torch.tensor([torch.inf])
        raise RuntimeError(words) if len(held) else KeyError

    assert len(spoken_of(raised(fails))) == told


def test_an_error_without_a_traceback_speaks_of_nothing():
    assert spoken_of(ValueError("nan")) == ()
