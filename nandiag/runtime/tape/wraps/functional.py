"""The wraps of ``torch.func.grad`` and of what maps it over samples: their calls are borders of steps (worker)."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from nandiag.runtime.guard import safely
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tracebacks import pass_on


def wrap_functional_grads(capture: Capture, called: Callable[..., Any]) -> None:
    """A call of what ``torch.func.grad`` or ``grad_and_value`` returned is a border, as ``autograd.grad`` is.

    ``called`` is given the loss and the gradients then, and raises nothing.
    """
    valued = torch.func.grad_and_value

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def transform(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
                return original(*args, **kwargs)
            if not capture.idle:
                safely("window", capture.window.open)  # no module need ever be called
            # torch computes the value for the gradient too, and throws it away: it is the loss.
            has_aux = bool(kwargs.get("has_aux", args[2] if len(args) > 2 else False))
            border = _functional_border(valued(*args, **kwargs), called, has_aux=has_aux)
            given = border if original is valued else _without_value(border, has_aux=has_aux)
            single[given] = border, has_aux
            return given

        return transform

    # Gradients of one sample, which the script may have vmap take of many.
    single: weakref.WeakKeyDictionary[Callable[..., Any], Any] = weakref.WeakKeyDictionary()
    torch.func.grad, torch.func.grad_and_value = watched(torch.func.grad), watched(valued)
    torch.func.vmap = torch.vmap = _over_samples(torch.func.vmap, single, called)


def _over_samples(original: Callable[..., Any], single: Any, called: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrap of ``vmap``: of ``single`` functions that return gradients it makes one that is a border itself."""

    @functools.wraps(original)
    def vmap(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        border, has_aux = single.get(func, (None, False)) if inspect.isfunction(func) else (None, False)
        where_put = kwargs.get("out_dims", args[1] if len(args) > 1 else 0)
        if border is None or where_put != 0 or torch.compiler.is_compiling():
            return original(func, *args, **kwargs)
        mapped = _functional_border(original(border, *args, **kwargs), called, has_aux=has_aux)
        return mapped if func is border else _without_value(mapped, has_aux=has_aux)

    return vmap


def _functional_border(
    transformed: Callable[..., Any], called: Callable[..., Any], *, has_aux: bool
) -> Callable[..., Any]:
    @functools.wraps(transformed)
    def border(*args: Any, **kwargs: Any) -> Any:
        try:
            gradients, rest = transformed(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if torch._C._functorch.peek_interpreter_stack() is None:
            called(rest[0] if has_aux else rest, tensors_in(gradients))
        return gradients, rest

    return border


def _without_value(border: Callable[..., Any], *, has_aux: bool) -> Callable[..., Any]:
    @functools.wraps(border)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        try:
            gradients, rest = border(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        return (gradients, rest[1]) if has_aux else gradients

    return gradient
