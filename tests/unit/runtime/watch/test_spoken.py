"""An error that ends the script and speaks of NaN or infinities: what it speaks of is led back to the line."""

import gc
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.events import Warned
from nandiag.runtime.watch.told.spoken import Refusal, spoken_of


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


class StopError(Exception):
    pass


def names_a_sampler(held):
    raise RuntimeError("The sampler is infinite: give max_steps")


def misses_a_key(held):
    return {}["inf"]


def finds_no_file(held):
    return Path("no/such/folder/nan.txt").read_text()


def shows_the_best_so_far(held):
    best = torch.tensor(torch.inf)
    raise StopError(f"patience is over, best={best.item()}")


def has_no_word_for_it(held):
    return torch.isnan(held, foo=1)


def is_configured_badly(held):
    table = torch.full((3,), torch.nan)
    wanted = {"lr": "nan"}
    assert "rate" in wanted, f"NaN not allowed in config, nor in {len(held)} others"
    return table


def checks_another(held):
    other, table = torch.ones(2), torch.full((3,), torch.nan)
    if other.isfinite().all():
        raise ValueError("isfinite check failed to run")
    return table


@pytest.mark.parametrize(
    "fails",
    [names_a_sampler, misses_a_key, finds_no_file, shows_the_best_so_far, has_no_word_for_it, is_configured_badly,
     checks_another],
)  # fmt: skip
@pytest.mark.parametrize("value", [-torch.inf, torch.inf])
def test_an_error_that_is_spelt_like_one_is_no_harm_of_the_masks_and_tables_beside_it(work, fails, value):
    worker, sampler = work(), Sampler()
    kept = trained(sampler, 3)
    mask = torch.full((2, 2), value).triu(1)
    worker.sentinel.last.take(raised(fails, mask))
    assert worker.harms == []
    assert worker.looked == []
    assert kept


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


# ---------------------------------------------------------------------- raised within the model


class Chances(nn.Module):
    """A model whose own forward refuses what it made: by a loss of torch's, a draw, a check, or a condition."""

    def __init__(self, refuse):
        super().__init__()
        self.layer, self.refuse = nn.Linear(2, 3), refuse

    def forward(self, x, size):
        scores = self.layer(x) / size
        return self.refuse(torch.softmax(scores, -1))


def by_a_loss(chances):
    return nn.functional.binary_cross_entropy(chances, torch.ones(1, 3))


def by_a_draw(chances):
    torch.multinomial(chances.detach(), 1)
    return chances.mean()


def by_a_check(chances):
    return torch.distributions.Categorical(chances).log_prob(torch.ones(1))


def by_a_condition(chances):
    if not torch.isfinite(chances).all():
        raise ValueError("this went wrong")
    return chances.mean()


def by_an_error_of_its_own(chances):
    try:
        return by_a_draw(chances)
    except RuntimeError as error:
        raise StopError("drawn in vain") from error


def step_of(model, optimizer, size):
    model(torch.ones(1, 2), torch.tensor(size)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


REFUSALS = [by_a_loss, by_a_draw, by_a_check, by_a_condition, by_an_error_of_its_own]


@pytest.mark.parametrize("refuse", REFUSALS)
@pytest.mark.parametrize("steps", [3, 40])
def test_what_a_models_own_forward_refuses_has_its_line(work, refuse, steps):
    """Of 40 short steps the newest calls are only jotted down."""
    worker, model = work(), Chances(refuse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        step_of(model, optimizer, 1.0)
    before = [one.detach().clone() for one in model.parameters()]
    worker.sentinel.last.take(raised(step_of, model, optimizer, 0.0))
    (looked,) = worker.looked
    assert (looked.outcome, looked.step, looked.phase, looked.site.op) == ("found", steps, "forward", "aten.div.Tensor")
    assert looked.site.source.strip() == "scores = self.layer(x) / size"
    assert [harm.step for harm in worker.harms] == [steps]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(one.grad is None for one in model.parameters())


def test_a_call_that_raised_and_was_answered_is_let_go_of_with_the_step(work):
    worker, model = work(), Chances(by_a_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(1, 2)
    raised(model, x, torch.tensor(0.0))
    held, x = weakref.ref(x), None
    step_of(model, optimizer, 1.0)
    gc.collect()
    assert held() is None
    worker.sentinel.last.take(raised(by_a_loss, torch.full((1, 3), math.nan)))
    assert not any("self.layer" in looked.site.source for looked in worker.looked if looked.site is not None)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (KeyError("inf"), False),
        (KeyboardInterrupt(), False),
        (ValueError("this went wrong"), True),
    ],
)
def test_a_call_is_kept_only_where_its_error_may_be_of_numbers(error, kept):
    """A smaller batch, say, needs the memory of the one that found none."""
    refusal, entry = Refusal(), object()
    assert refusal.keep_call(entry, error) is kept
    assert (refusal.broken(error) is not None) is kept
    refusal.step_ends()
    assert refusal.broken(error) is None


def test_an_error_of_a_model_that_is_of_no_numbers_is_no_harm(work):
    def refuse(chances):
        raise RuntimeError("the other side has hung up")

    worker, model = work(), Chances(refuse)
    worker.sentinel.last.take(raised(model, torch.ones(1, 2), torch.tensor(0.0)))
    assert not worker.harms


class Masked(nn.Module):
    """Adds what rules some keys out; where there are too many or too few of them torch refuses that for its shape."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, keep):
        bias = torch.log(keep.float())
        return (self.layer(x) + bias).softmax(-1).square().mean()


@pytest.mark.parametrize("steps", [3, 40])
def test_an_error_about_a_shape_is_none_of_the_mask_that_the_refused_op_was_given(work, steps):
    """The first model's call is unfinished then, so that the step is run again."""
    worker, first, model = work(), nn.Linear(2, 3), Masked()
    optimizer = torch.optim.SGD([*first.parameters(), *model.parameters()], lr=0.01)
    for _ in range(steps):
        model(first(torch.ones(1, 2)), torch.tensor([1, 0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
    error = raised(lambda: model(first(torch.ones(1, 2)), torch.tensor([1, 0])))
    worker.sentinel.last.take(error)
    assert worker.harms == []
    assert not any(looked.outcome == "found" for looked in worker.looked)


def test_an_error_that_a_model_raises_is_not_printed(work):
    """One that ends a forward early may carry a tensor, and one of the script's own may do anything when it is."""
    printed = []

    class EnoughError(Exception):
        def __str__(self):
            printed.append(self)
            raise RuntimeError("no words")

    def refuse(chances):
        raise EnoughError(chances)

    worker, model = work(), Chances(refuse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    raised(step_of, model, optimizer, 1.0)
    assert not printed
    model.refuse = by_a_loss
    worker.sentinel.last.take(raised(step_of, model, optimizer, 0.0))
    assert [looked.outcome for looked in worker.looked] == ["found"]
