"""A look into one forward: how large the float16 values are that torch calls return, by module (worker).

For the time of one root call a function mode and two global hooks are in place; then they are gone. Only 0-d results
are kept, and nothing is read. Not where anything is compiled: a mode on the stack would have it compiled anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from nandiag.runtime.look.finite import extent, local, quiet
from nandiag.runtime.names import is_wrapper, walk
from nandiag.runtime.tracebacks import pass_on

_MOST = 1024
# These only write a constant: a mask is as large as can be by design.
_MASKS = frozenset({"masked_fill", "masked_fill_", "where", "full", "full_like", "fill_", "triu", "tril"})

Extremes = dict[str, tuple[Tensor, Tensor]]


class ActivationLook(TorchFunctionMode):
    """Looks at the forward of one root module from :meth:`begin` to :meth:`end`, which returns what it saw."""

    def __init__(self, root: nn.Module, failed: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in walk(root)}
        self._root = next((type(module).__name__ for name, module in walk(root) if not name), type(root).__name__)
        self._failed = failed
        self._stack: list[str] = []
        self._seen: Extremes = {}
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """Put the mode and the hooks in place."""
        self._hooks = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
        ]
        torch._C._push_on_torch_function_stack(self)

    def end(self) -> Extremes:
        """Take them away; returns least and greatest value (0-d tensors) by where they came from."""
        modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        for mode in reversed(modes):
            if mode is not self:
                torch._C._push_on_torch_function_stack(mode)
        for hook in self._hooks:
            hook.remove()
        return self._seen

    def _enters(self, module: nn.Module, args: Any) -> None:
        del args
        self._stack.append(self._names.get(id(module), "") if not is_wrapper(module) else "")

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        if self._stack:
            self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call and look at what it returned; an error of ours is told, one of the call is the script's."""
        del types
        try:
            output = func(*args, **(kwargs or {}))
        except BaseException as error:
            pass_on(error)
            raise
        try:
            if isinstance(output, Tensor) and output.dtype is torch.float16:
                self._look(getattr(func, "__name__", ""), output)
        except Exception as error:
            self._failed(error)
        return output

    def _look(self, name: str, output: Tensor) -> None:
        if name in _MASKS or name == "__get__" or len(self._seen) >= _MOST:
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        with quiet():
            data = local(output)
            if data is None or data.numel() < 2 or output._is_view():
                return
            low, high = extent(data)
            place = self._place(name.strip("_"))
            known = self._seen.get(place)
            if known is not None:
                low, high = torch.minimum(low, known[0]), torch.maximum(high, known[1])
            self._seen[place] = low, high

    def _place(self, call: str) -> str:
        module = self._stack[-1] if self._stack else ""
        return f"{module} ({call}) of {self._root}" if module else f"{self._root} ({call})"


def anything_compiled() -> bool:
    """Whether dynamo has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo is not None and dynamo.counters.get("frames"))
