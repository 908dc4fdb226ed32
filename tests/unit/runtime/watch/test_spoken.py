"""An error that ends the script and speaks of NaN or infinities: what it speaks of is led back to the line."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.events import Warned
from nandiag.runtime.watch.told.spoken import Refusal, spoken_of
from tests.unit.runtime.watch.refusing import Sampler, raised, trained


def test_what_a_function_of_torchs_refuses_has_its_line(work):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    worker.sentinel.last.take(raised(sampler.pick))
    (harm,), looked = worker.harms, worker.looked[0]
    assert (harm.what, harm.step, harm.tensors[0].posinf) == ("output", 3, 1)
    assert (looked.outcome, looked.site.op) == ("found", "aten.reciprocal.default"), looked
    assert looked.site.source.strip() == "weights = 1.0 / self.loss"
    assert kept


def drawn_at_once(sampler):
    return torch.multinomial(1.0 / sampler.loss * 0.0, 1)


def drawn_again_and_again(sampler):
    chances = 1.0 / sampler.loss * 0.0
    return torch.multinomial(chances, 5, replacement=True)


@pytest.mark.parametrize("draw", [drawn_at_once, drawn_again_and_again])
def test_what_a_draw_refuses_is_known_without_a_name_and_without_the_word_nan(work, draw):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    worker.sentinel.last.take(raised(draw, sampler))
    assert worker.harms[0].tensors[0].nan == 1
    assert worker.looked[0].site.op == "aten.reciprocal.default"
    assert "1.0 / sampler.loss * 0.0" in worker.looked[0].site.source
    assert kept


def test_what_a_call_was_given_that_found_no_memory_is_not_kept():
    refusal, given = Refusal(), torch.tensor([torch.nan])
    error = RuntimeError("not enough memory")
    refusal.keep(error, ((given,), {}))
    assert refusal.given(error) == ()
    worded = RuntimeError("contains nan")
    refusal.keep(worded, ((given, torch.tensor(-torch.inf)), {}))
    assert refusal.given(worded) == (given,)
    assert refusal.given(error) == ()


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
        if not held.isfinite().all():
            raise RuntimeError(words)

    assert len(spoken_of(raised(fails))) == told


def test_an_error_without_a_traceback_speaks_of_nothing():
    assert spoken_of(ValueError("nan")) == ()


def by_a_number(loss):
    value = float(loss)
    if math.isnan(value):
        raise ValueError("the loss is nan")


def by_an_assertion(loss):
    fine = torch.isfinite(loss)
    assert fine.all(), "not finite"


def by_its_message(loss):
    raise RuntimeError(f"diverged: {loss} is NaN")


def in_a_loop(loss):
    for one in [torch.ones(1), loss]:
        if not one.isfinite().all():
            raise FloatingPointError("non-finite")


@pytest.mark.parametrize("fails", [by_a_number, by_an_assertion, by_its_message, in_a_loop])
def test_what_the_script_asked_is_led_back_to_what_it_asked_it_of(work, fails):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)

    def checked():
        other = torch.full((3,), torch.nan)
        loss = (torch.zeros(1) / torch.zeros(1)).squeeze()
        fails(loss)
        return other

    worker.sentinel.last.take(raised(checked))
    assert [one.shape for one in worker.harms[0].tensors] == [()] or fails is in_a_loop
    assert worker.looked[0].site.op == "aten.div.Tensor"
    assert kept


def test_a_mask_that_the_very_call_refuses_has_its_line(work):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)

    def picks():
        scores = torch.ones(4).masked_fill(torch.tensor([True, False, False, True]), -torch.inf)
        return torch.multinomial(scores, 1)

    worker.sentinel.last.take(raised(picks))
    assert worker.harms[0].what == "output"
    assert worker.looked[0].site.source.strip().startswith("scores = torch.ones(4).masked_fill(")
    assert kept


def of_an_entropy(bad):
    return nn.functional.binary_cross_entropy(bad.view(-1), torch.ones(bad.numel()))


def of_a_chance(bad):
    return torch.bernoulli(bad)


def of_a_factor(bad):
    return torch.linalg.cholesky(torch.eye(2) * bad.view(-1)[0])


def of_boxes(bad):
    corners = bad.view(1, -1).repeat(1, 4)
    if not (corners[:, 2:] >= corners[:, :2]).all():
        raise AssertionError


def of_an_index(bad):
    table, places = torch.arange(4), bad.view(-1).long()
    return table[places[0]]


@pytest.mark.parametrize("fails", [of_an_entropy, of_a_chance, of_a_factor, of_boxes, of_an_index])
def test_a_refusal_of_nan_in_other_words_has_its_line(work, fails):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)

    def checked():
        chance = torch.zeros(1, 1) / torch.zeros(1, 1)
        return fails(chance)

    worker.sentinel.last.take(raised(checked))
    assert worker.harms[0].tensors[0].nan
    assert worker.looked[0].site.op == "aten.div.Tensor"
    assert kept


def has_other_rows(held):
    return torch.ones(2, 3) @ held.repeat(2, 2)


def asks_of_another(held):
    sizes = torch.ones(3)
    if sizes.sum() != held.numel():
        raise AssertionError("rows were lost")


def refuses_a_finite_chance(held):
    return nn.functional.binary_cross_entropy(torch.full((2,), 3.0), torch.ones(2))


def leaves_the_table(held):
    return torch.arange(3)[int(7 + held.numel())]


@pytest.mark.parametrize("fails", [has_other_rows, asks_of_another, refuses_a_finite_chance, leaves_the_table])
def test_a_refusal_that_nan_has_no_part_in_is_no_harm_of_the_padding_beside_it(work, fails):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    padded = torch.full((1, 4), torch.nan)
    worker.sentinel.last.take(raised(fails, padded))
    assert worker.harms == []
    assert worker.looked == []
    assert kept


def test_what_the_script_answers_itself_is_let_go_of_with_the_step(work):
    work()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        loss = model(torch.randn(3, 4)).square().mean()
        matrix = -torch.eye(4)
        held = weakref.ref(matrix)
        with pytest.raises(RuntimeError):
            torch.linalg.cholesky(matrix)
        del matrix
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gc.collect()
        assert held() is None


def drawn_behind_a_mask(sampler):
    allowed = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    legal = sampler.loss[:2].softmax(-1) * allowed
    return torch.multinomial(legal, 1)


def drawn_by_exponentials(sampler):
    weights = torch.exp(-1000.0 * sampler.loss[:1])
    weights = weights.detach()
    return torch.multinomial(weights, 1)


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (drawn_behind_a_mask, {"name": "legal", "zero": "allowed", "rows": [1], "of": 2}),
        (drawn_by_exponentials, {"name": "weights", "small": True, "made": "torch.exp(-1000.0 * sampler.loss[:1])"}),
    ],
)
def test_a_draw_that_had_nothing_to_draw_is_told_with_what_left_it_nothing(work, draw, told):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    worker.sentinel.last.take(raised(draw, sampler))
    assert worker.harms == []
    (warned,) = worker.events(Warned)
    assert {name: warned.facts.get(name) for name in told} == told
    assert warned.facts["source"] == f"return torch.multinomial({told['name']}, 1)"
    assert kept


def test_another_error_about_finite_numbers_is_no_draw(work):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    worker.sentinel.last.take(raised(of_a_chance, torch.tensor([2.0])))
    assert worker.events(Warned) == []
    assert kept
