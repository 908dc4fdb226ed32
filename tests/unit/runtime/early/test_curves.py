"""Loss and gradient norm against their own history: healthy curves are silent, those that go wrong are not."""

import importlib.util
import math
import random
from pathlib import Path

import pytest

from nandiag.runtime.early.curves import Curves
from nandiag.runtime.early.rates import Rates, Scales
from nandiag.settings import Thresholds

_SPEC = importlib.util.spec_from_file_location("curves_of_life", Path(__file__).with_name("curves_of_life.py"))
life = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(life)


def seeded(seed):
    return random.Random(seed)  # noqa: S311 - test data


def warned(curve, limits=None):
    """(step, slug) of each warning on a curve of (loss, norm)."""
    curves = Curves(limits or Thresholds())
    return [(step, slug) for step, row in enumerate(curve) for slug, _ in curves.add(*row)]


@pytest.mark.parametrize("family", life.HEALTHY, ids=lambda family: family.__name__)
@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_curve_is_silent(family, seed):
    rng = seeded(seed)
    assert warned(family(rng, rng.choice((300, 1000)))) == []


@pytest.mark.parametrize("name", life.SICK)
@pytest.mark.parametrize("seed", range(6))
def test_a_curve_that_goes_wrong_is_told_soon(name, seed):
    family, slugs = life.SICK[name]
    found = warned(family(seeded(seed), 600))
    begins = 0 if name == "early_divergence" else 300
    assert found
    assert {slug for _, slug in found} <= slugs
    assert begins <= found[0][0] <= begins + 10


@pytest.mark.parametrize(
    "family", [*life.HEALTHY, *(family for family, _ in life.SICK.values())], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("seed", range(3))
def test_calm_steps_that_are_told_of_together_leave_what_they_leave_one_by_one(family, seed):
    curve, one_by_one, together, waiting = family(seeded(seed), 600), Curves(Thresholds()), Curves(Thresholds()), []

    def tell():
        if waiting:
            together.were_calm(*map(list, zip(*waiting, strict=True)))
            waiting.clear()

    def is_calm(loss, norm, known):
        return loss <= known.loss and norm <= known.norm

    most, known = 0, None
    for loss, norm in curve:
        expected = one_by_one._add(loss, norm)  # each detector is asked, calm or not
        if known is not None and len(waiting) < known.steps and None not in (loss, norm) and is_calm(loss, norm, known):
            waiting.append((loss, norm))
            most = max(most, len(waiting))
            assert not expected
            continue
        tell()
        assert list(together.add(loss, norm)) == list(expected)
        known = together.calm()
    tell()
    assert vars(together._growth) == vars(one_by_one._growth)
    assert vars(together._norms) == vars(one_by_one._norms)
    assert vars(together._losses) == vars(one_by_one._losses)
    assert family is not life.classifier or most > 32


def test_a_higher_threshold_is_heeded():
    def curve():
        return life.one_spike(seeded(1), 600)

    assert warned(curve()) != []
    assert warned(curve(), Thresholds(grad_norm=1000.0)) == []


def test_two_sorts_of_steps_in_turn_hide_no_explosion():
    curve = [(0.5, norm) for norm in [1.0, 5.0] * 100 + [900.0]]
    assert warned(curve) == [(200, "grad_norm_spike")]


def test_values_that_are_not_finite_are_left_to_the_sentinel():
    curves = Curves(Thresholds())
    for step in range(200):
        bad = math.nan if step % 3 else math.inf
        assert curves.add(bad, bad) == []
        assert curves.add(None, None) == []


def test_what_a_spike_is_said_to_be_is_true():
    curves = Curves(Thresholds())
    facts = [facts for norm in [1.8, 2.0] * 100 + [70.0] for _, facts in curves.add(0.5, norm)]
    assert facts == [{"norm": 70.0, "largest": 2.0, "median": pytest.approx(2.0), "steps": 200}]


def scaled(rng, steps, factor, every, grows=0.0):
    """Return a loss that the script multiplies by a scale of its own, whose gradients it divides by that again."""
    for step in range(steps):
        scale = factor ** (step // every)
        yield (1.0 + rng.random()) * scale, (1.0 + rng.random()) * scale**grows


@pytest.mark.parametrize(("factor", "every"), [(8.0, 1), (2.0, 1), (2.0, 2), (8.0, 4), (1.3, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_the_script_scales_up_is_no_spike(factor, every, seed):
    assert warned(scaled(seeded(seed), 100, factor, every)) == []


def test_a_loss_that_rises_with_its_gradients_all_along_is_told():
    assert "loss_spike" in {slug for _, slug in warned(scaled(seeded(1), 100, 8.0, 1, grows=0.1))}


# ---------------------------------------------------------------------------------------------------- learning rate


def rates_warned(rates, planned=None):
    watch = Rates(Thresholds())
    return [(step, found[0]) for step, rate in enumerate(rates) if (found := watch.add(rate, lambda: planned))]


SCHEDULES = {
    "constant": [1e-3] * 300,
    "linear warm-up from zero": [min(1.0, step / 50) for step in range(300)],
    "warm-up by jumps": [1e-5] * 5 + [1e-3] * 300,
    "decay by ten": [0.1] * 100 + [0.01] * 100 + [0.001] * 100,
    "cosine restarts to zero": [0.05 * (1 + math.cos(math.pi * (step % 60) / 60)) for step in range(300)],
    "one cycle": [4e-4 + 0.01 * math.sin(math.pi * step / 300) for step in range(300)],
    "range test": [1e-7 * 1.05**step for step in range(300)],
    "thawed with a higher rate": [1e-4] * 100 + [1e-3] * 100,
    "none": [None] * 100,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_as_it_is_used_is_silent(name):
    assert rates_warned(SCHEDULES[name]) == []


def test_a_long_warm_up_may_jump_to_what_it_was_planned_for():
    assert rates_warned([1e-5] * 500 + [1e-2] * 10, planned=1e-2) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([1e-3] * 50 + [math.nan] * 50, [(50, "lr_out_of_range")]),
        ([1e-3] * 50 + [-1e-3] * 50, [(50, "lr_out_of_range")]),
        ([1e-3] * 50 + [math.inf], [(50, "lr_out_of_range")]),
        ([math.nan] * 3, [(0, "lr_out_of_range")]),
        ([1e-3] * 50 + [1.0] * 50, [(50, "lr_jump")]),
    ],
)
def test_a_rate_that_cannot_be_meant_is_told_once(rates, expected):
    assert rates_warned(rates) == expected


# ---------------------------------------------------------------------------------------------------- loss scale


def scales_warned(events):
    """``events``: a scale at which a step was left out, or None for a step that was made."""
    watch, found = Scales(Thresholds()), []
    for number, scale in enumerate(events):
        if scale is None:
            watch.used()
        elif watch.skipped(scale):
            found.append(number)
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([2.0**power for power in range(24, 10, -1)] + [None] * 20, []),  # the search for the first scale
        ([None] * 50 + [65536.0, None] * 50, []),  # growth and one fall
        ([None] * 9 + [2.0**power for power in range(16, 10, -1)], [13]),  # five in a row after it was found
        ([2.0**power for power in range(16, -1, -1)], [9, 14]),  # a search that does not end
        ([None] * 9 + [1024.0, 1024.0, 512.0, 512.0, 256.0, 256.0], []),  # two optimizers, three falls
    ],
)
def test_falls_of_a_scale(events, expected):
    assert scales_warned(events) == expected
