"""What Python and torch go by in the whole process: limits, defaults, modes of arithmetic (worker)."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import itertools
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import _tensor_str
from torch.utils.hooks import RemovableHandle


def registrations() -> Callable[[], None]:
    """Return what takes out again the hooks that this thread has by then registered with torch, wherever these lie.

    On tensors and modules, on an optimizer's steps, and for all modules and optimizers: each has a handle.
    """
    kind: Any = RemovableHandle
    original, first, thread = kind.__init__, kind.next_id, threading.get_ident()
    made: list[RemovableHandle] = []

    @functools.wraps(original)
    def begin(self: RemovableHandle, *words: Any, **named: Any) -> None:
        original(self, *words, **named)
        if threading.get_ident() == thread:
            made.append(self)

    def put_back() -> None:
        kind.__init__ = original
        for one in made:
            one.remove()
        if kind.next_id == first + len(made):  # no other thread has registered any
            kind.next_id = first

    kind.__init__ = begin
    return put_back


class _Setting(NamedTuple):
    """What tells of a setting, and what sets it."""

    get: Callable[[], Any]
    put: Callable[[Any], object]


def settings() -> Callable[[], None]:
    """Return what sets back all that is set otherwise by then; it touches nothing else."""
    kept = list(_as_they_are())

    def put_back() -> None:
        for one, value in kept:
            # One that refuses keeps no other from its own value.
            with contextlib.suppress(Exception):
                if one.get() != value:
                    one.put(value)

    return put_back


def _as_they_are() -> Iterator[tuple[_Setting, Any]]:
    """Yield each setting with its value; one that cannot be read is left out (torch's older names beside newer)."""
    for one in _all():
        with contextlib.suppress(Exception):
            yield one, one.get()


def _all() -> Iterator[_Setting]:
    yield _Setting(sys.getrecursionlimit, sys.setrecursionlimit)
    yield _Setting(sys.getswitchinterval, sys.setswitchinterval)
    if hasattr(sys, "set_int_max_str_digits"):
        yield _Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits)
    yield _Setting(gc.get_threshold, lambda many: gc.set_threshold(*many))
    yield _Setting(lambda: list(warnings.filters), _put_filters)
    yield _Setting(_loggers, _put_loggers)
    yield from _of_torch()
    yield from map(_of_decimals, _contexts())


def _of_torch() -> Iterator[_Setting]:
    yield _Setting(torch.get_default_dtype, torch.set_default_dtype)
    yield _Setting(torch.get_num_threads, torch.set_num_threads)
    yield _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield from _precisions()  # after the older name, which sets some of them
    yield _Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode)
    yield _Setting(_anomaly_mode, lambda mode: torch.autograd.set_detect_anomaly(*mode))
    yield _Setting(lambda: dict(vars(_tensor_str.PRINT_OPTS)), vars(_tensor_str.PRINT_OPTS).update)
    yield _Setting(lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal)
    # Their faces in Python refuse to be set where the script has frozen them.
    for name in ("mkldnn_enabled", "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32"):
        get, put = getattr(torch._C, f"_get_{name}", None), getattr(torch._C, f"_set_{name}", None)
        if get is not None and put is not None:
            yield _Setting(get, put)


def _precisions() -> Iterator[_Setting]:
    """Yield the precision of float32 of each backend and op (torch >= 2.9), those that others go by first."""
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    put = getattr(torch._C, "_set_fp32_precision_setter", None)
    if get is not None and put is not None:
        for place in (("generic", "all"), *itertools.product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn"))):
            yield _Setting(functools.partial(get, *place), functools.partial(put, *place))


def _anomaly_mode() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _put_filters(filters: list[Any]) -> None:
    held: Any = warnings.filters  # the very list that C holds
    held[:] = filters


def _loggers() -> dict[logging.Logger, tuple[Any, ...]]:
    named = list(logging.root.manager.loggerDict.values())
    known = [logging.root, *(one for one in named if isinstance(one, logging.Logger))]
    return {one: (one.level, one.propagate, list(one.handlers), list(one.filters)) for one in known}


def _put_loggers(kept: dict[logging.Logger, tuple[Any, ...]]) -> None:
    for one, (level, propagate, handlers, filters) in kept.items():
        if one.level != level:
            one.setLevel(level)
        one.propagate = propagate
        one.handlers[:], one.filters[:] = handlers, filters


def _contexts() -> Iterator[Any]:
    """Yield the contexts of decimal numbers; to ask for the present one would make one."""
    decimal = sys.modules.get("decimal")
    if decimal is not None:
        yield from (one for one in contextvars.copy_context().values() if isinstance(one, decimal.Context))


def _of_decimals(context: Any) -> _Setting:
    plain = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")

    def get() -> tuple[Any, ...]:
        return (*(getattr(context, name) for name in plain), dict(context.flags), dict(context.traps))

    def put(values: tuple[Any, ...]) -> None:
        for name, value in zip(plain, values, strict=False):
            setattr(context, name, value)
        context.flags, context.traps = values[-2:]

    return _Setting(get, put)
