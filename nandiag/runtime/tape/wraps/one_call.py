"""Functions that are taped as one entry: ``autograd.grad``, clips, what was compiled, transforms of ``torch.func``."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.births.known import CLIPS
from nandiag.runtime.frames import is_ours
from nandiag.runtime.guard import guarded, safely
from nandiag.runtime.look.finite import norms, quiet
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tracebacks import pass_on

# What is guarded here is called by its guard, that by the wrap of what the script called.
WRAPPED = 3


def as_one_call(
    capture: Capture, original: Callable[..., Any], *, traced: bool = True, again: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a wrap of ``original``, which may be ``traced`` when it is called first, that tapes it as one entry.

    ``again`` is what is called in its place when the step is run again.
    """

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Dynamo takes the first word for true and traces no further into ours.
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if traced:
            safely("births", _pause_prelude, capture)
        taped = not capture.idle and capture.window.on
        try:
            if taped:
                # What can be read only once (``net.parameters()``) is read here.
                args = tuple(map(_listed, args))
                kwargs = dict(zip(kwargs, map(_listed, kwargs.values()), strict=True))
                safely("window", capture.window.close)
            output = original(*args, **kwargs)
            if taped:
                tape_one(capture, again or original, (args, kwargs), output)
        except BaseException as error:
            pass_on(error)
            tell_refused(capture, original, (args, kwargs), error, taped=taped)
            raise
        finally:
            if taped:
                safely("window", capture.window.open)
        return output

    return wrapper


def as_compiled(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrap of what ``torch.compile`` made of a function: one entry, as what ``as_one_call`` wraps.

    What it calls as Python between two graphs (a model, say) opens no window, for Dynamo would trace that too.
    """
    one_call = as_one_call(capture, original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        window = capture.window
        if capture.idle or window.passes_by:
            return one_call(*args, **kwargs)
        safely("births", _pause_prelude, capture)
        seen = safely("window", window.pass_by)
        try:
            output = original(*args, **kwargs)
            if seen or window.wanted:
                tape_one(capture, original, (args, kwargs), output)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            safely("window", window.go_on, seen)
        return output

    return wrapper


def _pause_prelude(capture: Capture) -> None:
    """Before training it is a compiled function that is called: no more of it is seen."""
    if capture.births is not None and capture.births.prelude.on:
        capture.births.prelude.pause()


def _listed(word: Any) -> Any:
    return list(word) if isinstance(word, Iterator) else word


def made_one_call(capture: Capture, transform: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrap of a ``torch.func`` transform whose result is taped as one entry when it is called."""

    @functools.wraps(transform)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        transformed = transform(*args, **kwargs)
        return transformed if torch.compiler.is_compiling() else as_one_call(capture, transformed)

    return wrapper


def pulled_back(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrap of ``torch.func.vjp``: what its second result gives is run again with the forward that it is of."""
    forward = as_one_call(capture, original)

    @functools.wraps(original)
    def vjp(function: Any, *primals: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(function, *primals, **options)
        try:
            output, pull, *aux = forward(function, *primals, **options)
        except BaseException as error:
            pass_on(error)
            raise

        def again(primals: Any, given: Any, words: Any) -> Any:
            return original(function, *primals, **options)[1](*given, **words)

        return (output, _pulling(capture, pull, primals, functools.wraps(original)(again)), *aux)

    return vjp


def _pulling(
    capture: Capture, pull: Callable[..., Any], primals: tuple[Any, ...], again: Callable[..., Any]
) -> Callable[..., Any]:
    def only(_: Any, given: Any, words: Any) -> Any:
        return pull(*given, **words)

    one_call = as_one_call(capture, only, again=again)

    @functools.wraps(pull)
    def pulled(*given: Any, **words: Any) -> Any:
        if torch.compiler.is_compiling():
            return pull(*given, **words)
        try:
            return one_call(primals, given, words)
        except BaseException as error:
            pass_on(error)
            raise

    return pulled


@guarded("window")
def tape_one(capture: Capture, function: Any, words: tuple[Any, Any], output: Any) -> None:
    """Put a call that is over on the tape, of ``words`` (positional, by name), called by the wrap of what is taped."""
    frame, clips = sys._getframe(WRAPPED), getattr(function, "__name__", None) in CLIPS
    # Of a list of weights nothing but their gradients is written.
    alone = clips and type(output) is Tensor and words[0] and type(words[0][0]) is list
    if not (alone and capture.tape.jots.clipped(function, words, output, frame)):
        capture.window.tape_call(function, words, output, frame)


@guarded("window")
def tell_refused(capture: Capture, clip: Any, words: tuple[Any, Any], error: BaseException, *, taped: bool) -> None:
    """A ``clip`` has raised an ``error`` for bad gradients: the script was told so, as by their norm."""
    if not (taped and isinstance(error, RuntimeError) and getattr(clip, "__name__", None) in CLIPS):
        return
    bound = inspect.signature(clip).bind(*words[0], **words[1])
    with quiet():
        gradients = [one.grad for one in tensors_in(bound.args[:1]) if one.grad is not None]
        bad = [one for one in norms(gradients) if not math.isfinite(one.item())]
    if not bad or "error_if_nonfinite" not in bound.arguments:
        return
    frame: FrameType | None = sys._getframe(WRAPPED)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    bound.arguments["error_if_nonfinite"] = False  # where the step is run again it is only looked at
    capture.window.tape_call(clip, (bound.args, bound.kwargs), bad[0], frame)
    if capture.window.asked is not None:
        capture.window.asked.read(bad[0], frame)
