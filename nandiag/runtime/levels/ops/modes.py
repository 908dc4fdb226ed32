"""The stack of dispatch modes, of which the watch of ops is to be the lowest (worker)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def restack(change: Callable[[list[Any]], list[Any]]) -> None:
    """Put what ``change`` makes of the modes, lowest first, in their place."""
    count = torch._C._len_torch_dispatch_stack()
    modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)][::-1]
    for mode in change(modes):
        torch._C._push_on_torch_dispatch_stack(mode)
