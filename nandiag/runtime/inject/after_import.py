"""Call back once a module has been imported, without importing it ourselves (worker)."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    """A meta-path finder that wraps the loader of the modules waited for, and leaves when none is left."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        callbacks = self.waiting.pop(name, None)
        if callbacks is None:
            return None
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _wrap(spec.loader, callbacks)
        return spec


def _wrap(loader: importlib.abc.Loader, callbacks: Sequence[Callback]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = execute  # type: ignore[method-assign]
        execute(module)
        for callback in callbacks:
            callback(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _Finder()


def after_import(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` right after ``name`` is imported, or now when it is already. It must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _finder.waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget() -> None:
    """Drop all callbacks that still wait."""
    _finder.waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
