"""The wraps that feed the tape, put in place once, right after torch was imported (worker)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any
from weakref import ref as reference

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from nandiag.runtime.frames import scripted, trail
from nandiag.runtime.frames.compiled import leave_ours_alone
from nandiag.runtime.guard import guarded, safely
from nandiag.runtime.memory.packing import watch_packing
from nandiag.runtime.steady.roots import Roots
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.state import modes
from nandiag.runtime.tape.wraps.dropped import Dropped
from nandiag.runtime.tape.wraps.one_call import WRAPPED, as_compiled, as_one_call, made_one_call, pulled_back, tape_one
from nandiag.runtime.tape.wraps.owed import CALLS, Call, settle
from nandiag.runtime.tracebacks import pass_on

_stacked, _is_traced = torch._C._len_torch_function_stack, torch.compiler.is_dynamo_compiling


def install(capture: Capture) -> None:
    """Wrap module calls, ``autograd.grad``, custom Functions, compiled and scripted functions, gradient clipping."""
    _wrap_module_call(capture)
    _wrap_tensor_backward(capture)
    _wrap_optimizer_step(capture)
    _wrap_schedule_step(capture)
    _wrap_function_apply(capture)
    _wrap_compile(capture)
    _wrap_scripted(capture)
    leave_ours_alone()
    watch_packing()
    torch.autograd.grad = as_one_call(capture, torch.autograd.grad)
    for name in ("grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vmap"):
        setattr(torch.func, name, made_one_call(capture, getattr(torch.func, name)))
    torch.vmap = torch.func.vmap
    torch.func.jvp, torch.func.vjp = as_one_call(capture, torch.func.jvp), pulled_back(capture, torch.func.vjp)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(torch.nn.utils, name)
        setattr(torch.nn.utils, name, as_one_call(capture, original))
    # It reads each gradient several times: of a model with some dozens of weights the loop was taped in part for it.
    unscale = GradScaler._unscale_grads_
    GradScaler._unscale_grads_ = as_one_call(capture, unscale)  # type: ignore[method-assign]


def begins_early(capture: Capture) -> Callable[[Any, tuple[Any, Any], Any, Any], None]:
    """Return what tapes the first call that gradients flow through, which is over, and all that follow.

    A script without an optimizer and modules begins its first step so. Where it has modules after all, what was taped
    is dropped when the first of them is called.
    """

    @guarded("tape")
    def begins(func: Any, words: tuple[Any, Any], output: Any, frame: Any) -> None:
        if capture.by_hand and not capture.tape.step and not capture.idle:
            capture.window.tape_call(func, words, output, frame)
            capture.window.open()

    return begins


def _wrap_module_call(capture: Capture) -> None:
    original, roots = nn.Module.__call__, Roots(capture)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:  # the module among them: a module in another costs least by that
        if (capture.depth and capture.tracer is None) or _is_traced():  # Dynamo traces no further into ours
            return original(*args, **kwargs)
        entry, taped = roots.begins(args, kwargs), True
        if entry is None:
            if capture.tracer is not None and not capture.bystanders.here():
                return capture.tracer.spots.call(original, args[0], args[1:], kwargs)
            taped = not (capture.depth or torch.compiler.is_compiling() or capture.idle)
            entry = capture.root_begins(args[0], args[1:], kwargs) if taped else None
        capture.depth += taped
        try:
            output = original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            if taped:
                capture.root_raised(entry, error)
            raise
        finally:
            capture.depth *= not taped  # a call that is not taped may be another thread's
        if taped and not roots.ended(entry, output):
            capture.root_ends(args[0], entry, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]


def _wrap_tensor_backward(capture: Capture) -> None:
    original = torch.Tensor.backward
    window = capture.window
    sink = guarded("window")(window.sink)

    @functools.wraps(original)
    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        if _is_traced():
            original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
            return
        # Under a function mode Tensor.backward takes the mode off and puts it back by itself: it must not be ours.
        capture.training()
        safely("window", window.close)
        try:
            original(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        except BaseException as error:
            pass_on(error)
            raise
        if _stacked() > 1:
            sink()

    torch.Tensor.backward = backward  # type: ignore[method-assign]


def _wrap_optimizer_step(capture: Capture) -> None:
    """Shut the window round all of ``step``: torch profiles it by calls that cost more under a mode than our look."""
    original = torch.optim.Optimizer.profile_hook_step

    @functools.wraps(original)
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        profiled = original(func)

        @functools.wraps(profiled)
        def step(*args: Any, **kwargs: Any) -> Any:
            if _is_traced():
                return profiled(*args, **kwargs)
            watched = not capture.idle
            was_open = watched and safely("window", capture.window.close)
            capture.in_step += watched
            calls, returned = CALLS.stack, False
            calls.append(Call(args[0] if args else None))
            try:
                output = profiled(*args, **kwargs)
                returned = True
            except BaseException as error:
                pass_on(error)
                raise
            finally:
                capture.in_step -= watched
                due = calls.pop().due
                failed = None if due is None else safely("sentinel", settle, due, returned)
            if failed:
                raise failed
            if watched and (was_open or capture.reopen) and not capture.in_step:
                capture.step_left()
            return output

        return step

    torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[method-assign]


def _wrap_schedule_step(capture: Capture) -> None:
    """Tape what a schedule computes even where all else behind the backward is too much to tape: it makes a rate."""
    original = torch.optim.lr_scheduler.LRScheduler.step

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        opened = capture.narrow and not capture.idle and not capture.window.on
        if opened:
            safely("window", capture.window.open)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if opened:
                safely("window", capture.window.close)

    torch.optim.lr_scheduler.LRScheduler.step = step  # type: ignore[method-assign]


def on_class(method: Any) -> Callable[..., Any]:
    """Return a class method as a function of class and arguments; one made in C, as torch 2.15 has them, holds none."""
    return lambda cls, *args, **kwargs: method.__get__(None, cls)(*args, **kwargs)


def unseen(capture: Capture, original: Callable[..., Any], *firsts: Callable[..., object]) -> Callable[..., Any]:
    """Return ``original`` as a call that the window does not see; ``firsts`` are called before, with the same words."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        was_open = safely("window", capture.window.close)
        try:
            for first in firsts:
                first(*args, **kwargs)
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if was_open:
                safely("window", capture.window.open)

    return call


def dropping(capture: Capture, original: Callable[..., Any], first: Callable[..., object]) -> Callable[..., Any]:
    """Return the ``zero_grad`` of a class; ``first`` is called before, with the same words.

    It touches each parameter twice, which the window need not see. Behind a backward of this step it is taped, as one
    call: what is read of the next one's gradients has nothing of those that were dropped.
    """

    @guarded("tape")
    def drops(owner: Any, *words: Any, **options: Any) -> None:
        if not capture.tape.micro_step or capture.idle or capture.narrow:
            return
        entry = Entry(CALL, Dropped(original, reference(owner), words, options), grad=False, modes=modes())
        entry.in_place, entry.trail = True, trail(sys._getframe(WRAPPED))
        capture.tape.add(entry, (), {})

    return unseen(capture, original, drops, first)


def _wrap_function_apply(capture: Capture) -> None:
    original = on_class(torch.autograd.Function.__dict__["apply"])

    @functools.wraps(torch.autograd.Function.apply)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(cls, *args, **kwargs)
        taped = not capture.idle and safely("window", capture.window.close)
        capture.in_function |= taped
        try:
            output = original(cls, *args, **kwargs)
            if taped:
                tape_one(capture, cls.apply, (args, kwargs), output)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if taped:
                capture.in_function = False
                safely("window", capture.window.open)
        return output

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]


def _wrap_compile(capture: Capture) -> None:
    original = torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **kwargs)
        compiled = original(model, **kwargs)
        if isinstance(compiled, nn.Module) or isinstance(model, type):
            return compiled
        return as_compiled(capture, compiled)

    torch.compile = compile_


def _wrap_scripted(capture: Capture) -> None:
    """Tape what ``torch.jit`` made of functions and methods, which no function mode sees."""
    torch._C.ScriptFunction.__call__ = as_one_call(capture, scripted.call, traced=False)  # type: ignore[method-assign]
    method = torch._C.ScriptMethod.__call__
    torch._C.ScriptMethod.__call__ = as_one_call(capture, method, traced=False)  # type: ignore[method-assign]
    for name in ("trace", "trace_module"):
        setattr(torch.jit, name, _out_of_sight(capture, getattr(torch.jit, name)))


def _out_of_sight(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``original`` without a function mode of ours round it: a trace has the line of whoever calls an op."""
    unwindowed = unseen(capture, original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        prelude = None if capture.births is None else capture.births.prelude
        recorded = prelude is not None and prelude.on and prelude.pause()
        try:
            return unwindowed(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if recorded and prelude is not None:
                prelude.resume()

    return call
