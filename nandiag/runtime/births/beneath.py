"""A function mode that lies below the script's own modes, and is opened and closed by hand (worker).

``with torch.device(...)`` takes the top mode off the stack in C++, whichever it is: ours must not be that one.
"""

from __future__ import annotations

from threading import get_ident as _ident
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nandiag.runtime.guard import disarm
from nandiag.runtime.recorder import RECORDER

_stacked = torch._C._len_torch_function_stack
_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack


class Beneath(TorchFunctionMode):
    """Sees torch calls while it is ``on``; once ``shut`` it opens no more. Its failures darken ``probe``."""

    probe = "window"

    def __init__(self) -> None:
        super().__init__()
        self.on = self.shut = False
        self.owner: int | None = None  # the only thread that may open it, None for any
        self._thread = 0
        self._within = self._wanted = False

    def open(self) -> None:
        """Begin to see. What a call that was seen does within (DTensor's handlers are Python) is its own affair."""
        try:
            here, dark = _ident(), RECORDER.darkened
            if self.on or self._within or self.shut or (dark and self.probe in dark) or self.owner not in (here, None):
                self._wanted |= self._within
                return
            self.on, self._thread = True, here
            if not _stacked():
                _push(self)
                return
            # torch insists that its default-device mode is the lowest of all.
            device = _default_device()
            stacked = _pop_all()
            lowest = int(bool(stacked) and stacked[0] is device)
            _push_all([*stacked[:lowest], self, *stacked[lowest:]])
        except Exception as error:  # the wraps call this where nothing is above them but the script
            disarm(self.probe, error)

    def close(self) -> bool:
        """Stop seeing; returns whether it did see."""
        try:
            if not self.on or self._thread != _ident():
                return False  # modes are a thread's own: another one cannot take it off
            self.on = False
            if _stacked() == 1:
                _pop()
            else:
                _push_all([mode for mode in _pop_all() if mode is not self])
        except Exception as error:
            disarm(self.probe, error)
            return False
        return True

    @property
    def passes_by(self) -> bool:
        """Whether a call is under way whose doings are its own affair."""
        return self._within

    def pass_by(self) -> bool:
        """Stop seeing until :meth:`go_on`, whoever opens it meanwhile; returns whether it did see."""
        seen = self.close()
        self._within, self._wanted = True, False
        return seen

    @property
    def wanted(self) -> bool:
        """Whether somebody would have opened it since it passes by."""
        return self._wanted

    def go_on(self, seen: bool) -> None:  # noqa: FBT001 - what pass_by() has returned
        """See again, where it did or somebody wanted it to."""
        self._within = False
        if seen or self._wanted:
            self.open()

    @property
    def here(self) -> bool:
        """Whether it was opened in this thread, if at all."""
        return self._thread == _ident()

    def leave(self) -> None:
        """Let go of the thread that it was opened in, on whose stack it stays and does nothing from now on."""
        self.on = self._within = False
        self._thread = _ident()

    def sink(self) -> None:
        """Lie below the script's modes again: opened within the handler of one, it came to lie elsewhere."""
        if self.on and torch._C._len_torch_function_stack() > 1:
            self.close()
            self.open()


def _default_device() -> Any:
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _pop_all() -> list[Any]:
    """Take all function modes off the stack; returns them lowest first."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())][::-1]


def _push_all(stacked: list[Any]) -> None:
    for mode in stacked:
        torch._C._push_on_torch_function_stack(mode)
