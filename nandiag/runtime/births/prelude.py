"""Sees the torch calls that a script makes before its first step, and has them recorded (worker).

From the import of torch to the first call of a root module, or the first backward; it opens no more when training has
begun, or when there are so many calls that seeing them would be felt.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.births.again import Words
from nandiag.runtime.births.beneath import Beneath
from nandiag.runtime.births.known import EXPOSES, Call, is_in_place
from nandiag.runtime.births.record import SILENT, Record
from nandiag.runtime.frames import places
from nandiag.runtime.guard import disarm, guarded
from nandiag.runtime.leaves import is_leaf, unseen
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.numeric.read import Read
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.state import capturing
from nandiag.runtime.tracebacks import pass_on

_DEBT = 0.1
_MOST_PAUSES = 64
_FRAMES = 6
_READS = frozenset({"item", "__float__"})
_UNSEEN = SILENT - EXPOSES - _READS


class Prelude(Beneath):
    """Hands each call with what it returned to ``record``, and each number that is read off a tensor to ``read``.

    ``on_gradients`` is given the first call that gradients flow through: a script that has neither optimizer nor module
    may have begun its first step.
    """

    probe = "births"

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        self.read = Read(record.birth_of)
        self._pauses = 0
        self.on_gradients: Callable[[Any, tuple[Any, Any], Any, Any], object] | None = None
        self.cut_short = False
        self.on_cut_short: Callable[[], object] | None = None

    def begin(self) -> None:
        """See from now on; a worker of a DataLoader, forked meanwhile, does not."""
        self.open()
        os.register_at_fork(after_in_child=self.end)

    @guarded("births")
    def pause(self) -> bool:
        """Do not see what a root module or a compiled function does; returns whether it did see until then."""
        self._pauses += 1
        if self._pauses > _MOST_PAUSES:
            self.end()
        return self.close()

    @guarded("births")
    def resume(self) -> None:
        """See again, unless training has begun."""
        self.open()

    def end(self) -> None:
        """Training begins. Also a prelude that saw no more, or whose probe is dark, leaves the stack of modes now."""
        try:
            self.close()
            if not self.shut:
                self.shut = True
                self.record.keep_bad()
        except Exception as error:
            self.shut = True
            disarm(self.probe, error)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call, then have it recorded; an error of ours goes dark, an error of the call is the script's."""
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if torch.compiler.is_compiling() or name in _UNSEEN or self.shut:  # Dynamo traces no further into ours
            return func(*args, **kwargs)
        self._within = True
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            self._within = False
        try:
            self._record(name, func, (args, kwargs), output)
        except Exception as error:
            disarm(self.probe, error)
            self.shut = True
        return output

    def _record(self, name: str, func: Any, words: tuple[Any, Any], output: Any) -> None:
        if RECORDER.mute or capturing() or torch._C._len_torch_dispatch_stack():
            return
        if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None:
            return
        if name in _READS:
            self._read(output, words[0])
            return
        in_place = writes(func, words[1])
        target = target_of(words) if in_place else None
        if in_place and target is None:  # a list of tensors, as the functions of torch._foreach_* take it
            for one in tensors_in((list(words[0][:1]), words[1].get("out"))):
                self.record.forget(one)
            return
        self._saw(Call(name, places(sys._getframe(2), _FRAMES)[0]), Words(func, *words, target), output)
        if self.on_gradients is not None and not self.shut and _carries_gradients(output):
            begins, self.on_gradients = self.on_gradients, None
            begins(func, words, output, sys._getframe(2))

    def _read(self, output: Any, args: tuple[Any, ...]) -> None:
        if type(output) is float and not math.isfinite(output):
            with quiet():
                self.read.note(output, args)

    def took(self, name: str, func: Any, taken: Tensor, frame: Any) -> None:
        """A tensor was laid over memory that is not torch's, which ``name`` was given from ``frame``."""
        if self.record.left() <= 0:
            with torch._C.DisableTorchFunction():  # a dataset may be made of very many such tensors
                self.record.forget_memory(taken.untyped_storage()._cdata)
        elif self.here and not RECORDER.mute and not torch._C._len_torch_dispatch_stack():
            before, began = self.record.spent, time.thread_time()
            self._saw(Call(name, places(frame, _FRAMES)[0]), Words(func, (), {}, None), taken)
            self.record.spent = before + time.thread_time() - began  # all of it: the walk to the line is the most

    def _saw(self, call: Call, words: Words, output: Any) -> None:
        with quiet():
            self.record.saw(call, words, output)
        if self.record.left() < -_DEBT:
            self.shut = self.cut_short = True  # it stays on the stack and sees nothing, until it is closed
            self.record.lose()
            if self.on_cut_short is not None:
                self.on_cut_short()  # what else sees such calls before training costs as much


def _carries_gradients(output: Any) -> bool:
    outputs = (output,) if isinstance(output, Tensor) else tensors_in(output)
    return any(unseen(getattr, one, "requires_grad") and not is_leaf(one) for one in outputs)


def writes(func: Any, kwargs: Any) -> bool:
    """Whether a call writes into what it is given."""
    return is_in_place(getattr(func, "__name__", "")) or kwargs.get("out") is not None


def target_of(words: tuple[Any, Any]) -> Tensor | None:
    """Return what a function that writes in place writes into: torch.nn.init's are given it by name."""
    args, kwargs = words
    out = kwargs.get("out")
    first = out if out is not None else args[0] if args else next(iter(kwargs.values()), None)
    return first if isinstance(first, Tensor) else None
