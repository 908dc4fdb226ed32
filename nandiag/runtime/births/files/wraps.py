"""The wraps by which it is heard what is read from files and written to them (worker).

``torch.load`` and ``torch.save``; ``torch.distributed.checkpoint`` and safetensors once the script has imported them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from nandiag.runtime.births.files.opened import opened
from nandiag.runtime.guard import guarded, safely
from nandiag.runtime.inject.after_import import after_import
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tracebacks import pass_on

_SHARDED = "torch.distributed.checkpoint.state_dict_"


class Heard(NamedTuple):
    """A call that returned: what it was given, what it returned, and the frame that made it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    frame: FrameType

    def word(self, place: int, name: str) -> Any:
        """Return an argument by its place, or its name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)


Ear = Callable[[Capture, Heard], None]


def watch_files(capture: Capture) -> None:
    """Wrap what reads weights from files and what writes them, now or once it has been imported."""
    torch.load = _reads(capture, torch.load, _load)
    torch.save = _heard(capture, torch.save, _save)
    _later(f"{_SHARDED}loader", _load_state_dict=lambda original: _reads(capture, original, _load_shards))
    _later(
        f"{_SHARDED}saver",
        _save_state_dict=lambda original: _heard(capture, original, _save_shards),
        async_save=lambda original: _foreheard(capture, original, _save_later),
    )
    _later("safetensors", safe_open=lambda original: opened(original, functools.partial(_read, capture)))
    _later("safetensors.torch", save_file=lambda original: _heard(capture, original, _save_file))


def _later(module: str, **wrapped: Callable[[Any], Any]) -> None:
    @guarded("births")
    def wrap(imported: ModuleType) -> None:
        for name, wrap_one in wrapped.items():
            setattr(imported, name, wrap_one(getattr(imported, name)))

    after_import(module, wrap)


def _heard(capture: Capture, original: Callable[..., Any], ear: Ear) -> Callable[..., Any]:
    """Return a wrap of a function behind which ``ear`` hears of its call."""
    hear = guarded("births")(ear)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            output = original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if capture.births is not None and not capture.off:
            hear(capture, Heard(args, kwargs, output, sys._getframe(1)))
        return output

    return wrapper


def _foreheard(capture: Capture, original: Callable[..., Any], ear: Ear) -> Callable[..., Any]:
    """Return a wrap of a function before which ``ear`` hears of its call."""
    hear = guarded("births")(ear)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if capture.births is not None and not capture.off:
            hear(capture, Heard(args, kwargs, None, sys._getframe(1)))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    return wrapper


def _reads(capture: Capture, original: Callable[..., Any], ear: Ear) -> Callable[..., Any]:
    """Return a wrap of a function that reads, during which nothing is taped: what it returns, or fills, is given."""
    heard = _heard(capture, original, ear)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        was_open = capture.window.on and not capture.idle and safely("window", capture.window.close)
        recorded = capture.births is not None and capture.births.prelude.pause()
        try:
            return heard(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if recorded:
                capture.births.prelude.resume()
            if was_open:
                safely("window", capture.window.open)

    return wrapper


def _load(capture: Capture, call: Heard) -> None:
    capture.births.loaded(call.word(0, "f"), call.output, call.frame, capture.tape.step)


def _load_shards(capture: Capture, call: Heard) -> None:
    folder, step = _folder(call.word(1, "storage_reader")), capture.tape.step
    capture.births.loaded(folder, call.word(0, "state_dict"), call.frame, step, call.word(5, "planner"))


def _read(capture: Capture, file: Any, content: Any, frame: FrameType) -> None:
    if capture.births is not None and not capture.off:
        capture.births.loaded(file, content, frame, capture.tape.step)


def _save(capture: Capture, call: Heard) -> None:
    _saved(capture, call.word(1, "f"), call.word(0, "obj"), call.frame)


def _save_file(capture: Capture, call: Heard) -> None:
    _saved(capture, call.word(1, "filename"), call.word(0, "tensors"), call.frame)


def _save_shards(capture: Capture, call: Heard) -> None:
    _saved(capture, _folder(call.word(1, "storage_writer")), call.word(0, "state_dict"), call.frame)


def _save_later(capture: Capture, call: Heard) -> None:
    """A thread will save a copy of it: who asked for that is here, and what it holds is known here."""
    folder = call.kwargs.get("checkpoint_id") or _folder(call.kwargs.get("storage_writer"))
    tape = None if capture.elsewhere else capture.tape
    capture.births.saves_later(folder, call.word(0, "state_dict"), call.frame, tape, capture.tape.step)


def _saved(capture: Capture, file: Any, content: Any, frame: FrameType) -> None:
    tape = None if capture.elsewhere else capture.tape
    capture.births.saved(file, content, frame, tape, capture.tape.step)


def _folder(storage: Any) -> Any:
    """Return where a reader or a writer of sharded checkpoints has its files."""
    return getattr(storage, "checkpoint_id", None)
