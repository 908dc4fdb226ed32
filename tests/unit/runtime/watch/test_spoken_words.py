"""Errors that are spelt like one of NaN, and are of something else."""

from pathlib import Path

import pytest
import torch

from tests.unit.runtime.watch.refusing import Sampler, StopError, raised, trained


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
