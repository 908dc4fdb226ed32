"""Functions of ours are named by where they stand (worker).

A function is pickled by its module and name, as one that a dataset holds (``loader=torch.load``) for spawned loaders:
these are to lead to it, and not to what it stands in for.
"""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from nandiag.runtime.frames import is_ours
from nandiag.runtime.guard import guarded

_OWNERS = (torch, torch.jit, torch.cuda, torch.nn.utils, nn.Module)


@guarded("names")
def name_by_place() -> None:
    """Give each wrap that torch has in a function's place the name by which it is found there."""
    for owner in _OWNERS:
        for name, value in list(vars(owner).items()):
            if type(value) is FunctionType and is_ours(value.__code__.co_filename) and _found(value) is not value:
                inside = "" if isinstance(owner, ModuleType) else f"{owner.__qualname__}."
                value.__module__ = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
                value.__qualname__ = f"{inside}{name}"


def _found(function: Any) -> object:
    """Return what is found where ``function`` says that it stands."""
    found: object = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found
