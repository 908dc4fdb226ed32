"""What a module holds that nobody could put back keeps a silent look away from it."""

import argparse
import ctypes
import decimal
import functools
import threading
from collections import deque
from enum import Enum
from typing import NamedTuple

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.calls.strangers import has_strangers

LOCK = threading.Lock()


class Color(Enum):
    RED = 1


class Pair(NamedTuple):
    a: torch.Tensor
    b: int


class Own:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class OwnList(list):
    """Python's own base keeps its items where nobody looks."""


class Holder(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.layer, self.value = nn.Linear(2, 2), value

    def forward(self, x):
        return self.layer(x)


class Locks(nn.Module):
    """Names a lock among its globals."""

    def forward(self, x):
        with LOCK:
            return x


KNOWN = [
    1, "a", None, torch.ones(2), [torch.ones(2), 3], {"a": (1, torch.float32)}, deque([1.0], maxlen=3), Own([1]),
    Pair(torch.ones(1), 2), Color.RED, argparse.Namespace(lr=0.1), lambda x: x, functools.partial(max, 3), nn.ReLU(),
    torch.Generator(), torch.optim.SGD, [].append,
]  # fmt: skip
STRANGE = [
    threading.Lock(), ctypes.c_int(3), memoryview(b"abc"), decimal.Context(), Slotted(1), OwnList([1]),
    {"lock": threading.Lock()}, [Own(threading.Lock())], iter([1, 2]), list(range(500)), ValueError("a"),
    functools.partial(max, threading.Lock()),
]  # fmt: skip


@pytest.mark.parametrize("value", KNOWN, ids=lambda one: type(one).__name__)
def test_what_can_be_put_back_is_no_stranger(value):
    assert not has_strangers(Holder(value))


@pytest.mark.parametrize("value", STRANGE, ids=lambda one: type(one).__name__)
def test_what_nobody_could_put_back_is_one(value):
    assert has_strangers(Holder(value))


def test_what_the_modules_own_code_names_counts_as_well():
    assert has_strangers(nn.Sequential(Locks()))
    assert not has_strangers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_what_leads_back_to_itself_comes_to_an_end():
    many = []
    many.append(many)
    assert not has_strangers(Holder(many))
