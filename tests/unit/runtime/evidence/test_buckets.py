"""DDP's gradient buckets by name, from what DDP tells: only what fits the parameters is believed."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.evidence.exchange.buckets import Bucket, buckets_of, with_buckets


class Told:
    """What of a DDP module is asked here."""

    parameters_to_ignore = frozenset({"frozen.weight"})

    def __init__(self, data):
        self.module = nn.ModuleDict({"up": nn.Linear(2, 3), "frozen": nn.Linear(3, 3, bias=False)})
        self.module["down"] = nn.Linear(3, 1)
        self._data = data

    def _get_ddp_logging_data(self):
        return self._data


def rebuilt(indices):
    return {"has_rebuilt_buckets": 1, "rebuilt_per_bucket_param_indices": indices, "bucket_sizes": "40"}


def test_names_of_each_bucket_in_the_order_of_reduction():
    assert buckets_of(Told(rebuilt("3 2, 1 0"))) == [
        Bucket(0, ("down.bias", "down.weight")),
        Bucket(1, ("up.bias", "up.weight")),
    ]


def test_before_they_are_rebuilt_a_single_bucket_is_known_to_hold_all():
    names = ("up.weight", "up.bias", "down.weight", "down.bias")
    assert buckets_of(Told({"bucket_sizes": "40"})) == [Bucket(0, names)]


@pytest.mark.parametrize("data", [{"bucket_sizes": "20, 20"}, rebuilt("1 0"), rebuilt("7 6, 1 0"), {}, rebuilt("x")])
def test_nothing_is_claimed_where_it_does_not_fit(data):
    assert buckets_of(Told(data)) == []


def test_a_parameter_that_is_not_trained_is_in_none():
    told = Told({"bucket_sizes": "40"})
    told.module["up"].weight.requires_grad_(False)
    assert buckets_of(told)[0].names == ("up.bias", "down.weight", "down.bias")


@pytest.mark.parametrize("hook", [None, "powerSGD_hook"])
def test_what_a_hook_sends_is_not_said_to_be_the_bucket_itself(hook, group):
    told = Told({"bucket_sizes": "40"})
    told.reducer, told.process_group = None, dist.group.WORLD
    if hook is not None:
        told._comm_hooks = [(SimpleNamespace(__qualname__=hook), None)]
    told.module["up"].bias.grad = torch.full((3,), math.nan)
    facts = with_buckets(Looked("finite", "replay", 3), [told]).facts
    assert facts["carried_by"] == ("all_reduce" if hook is None else f"communication hook {hook}")
