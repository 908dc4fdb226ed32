"""Keeps torch's own anomaly mode usable in distributed training (worker): on DTensor, and in pipeline stages.

Who wants it holds it: the run, a call of ``nandiag.dtensor.enable()``, each open ``nandiag.dtensor.enabled()``. It is
in place as long as anybody does.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from nandiag.runtime.guard import guarded
from nandiag.runtime.inject.after_import import after_import
from nandiag.runtime.look import nan_check
from nandiag.runtime.tape.state import on_made_up_memory
from nandiag.runtime.tracebacks import hide_from_forward_lines, pass_on

_DTENSOR = "torch.distributed.tensor"
_STAGE = "torch.distributed.pipelining.stage"
_RUN = "run"
# They run forward and backward on memory that nobody has written, to learn shapes; names vary with torch.
_INFERENCES = ("_forward_metadata_inference", "_backward_metadata_inference", "_shape_inference")


class Support:
    """The support and its holders; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: set[object] = set()
        self._stages: list[tuple[type, str, Callable[..., Any]]] = []

    def hold(self, holder: object) -> None:
        """Have the support in place for ``holder``, who holds it once however often it asks. Imports DTensor.

        Raises ImportError where torch has no DTensor, AttributeError where its dispatcher is not the one we know.
        """
        # Before the lock is taken: a thread in the midst of this import may come here and wait for it.
        dtensor = _dtensor()
        with self._lock:
            if not self._holders:
                dtensor.install()
            self._holders.add(holder)
            self._quieten_stages()

    def release(self, holder: object) -> None:
        """Take the support away when ``holder`` was the last; does nothing for who does not hold it."""
        with self._lock:
            if holder not in self._holders:
                return
            self._holders.discard(holder)
            if self._holders:
                return
            _dtensor().uninstall()
            while self._stages:
                owner, name, original = self._stages.pop()
                setattr(owner, name, original)

    def stages_imported(self) -> None:
        """Take the pipeline stages in too, where the script imports them after the support was put in place."""
        with self._lock:
            if self._holders:
                self._quieten_stages()

    @property
    def held(self) -> bool:
        """Whether anybody holds it."""
        return bool(self._holders)

    def _quieten_stages(self) -> None:
        # Absent while not imported; without the class while its own import, of which DTensor's is a part, goes on.
        stage = getattr(sys.modules.get(_STAGE), "PipelineStage", None)
        if stage is None or self._stages:
            return
        for name in _INFERENCES:
            original = vars(stage).get(name)
            if original is not None:
                self._stages.append((stage, name, original))
                setattr(stage, name, without_nan_check(original))


def without_nan_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with all looks at values off while it runs, anomaly mode's too; forward lines are kept."""

    @functools.wraps(function)
    def unchecked(*args: Any, **kwargs: Any) -> Any:
        try:
            with nan_check.unchecked(), on_made_up_memory():
                return function(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    return unchecked


def _dtensor() -> ModuleType:
    return importlib.import_module("nandiag.runtime.dtensor")


SUPPORT = Support()


def arm() -> None:
    """Hold the support for this run as soon as the script, or torch for it, imports DTensor or pipeline stages."""
    nan_check.install()
    after_import("torch.fx.traceback", guarded("tracebacks")(hide_from_forward_lines))
    after_import(_DTENSOR, guarded("dtensor")(lambda _: SUPPORT.hold(_RUN)))
    after_import(_STAGE, guarded("dtensor")(lambda _: SUPPORT.hold(_RUN)))


def enable(holder: object) -> None:
    """Hold the support for a script that asked for it itself; raises as :meth:`Support.hold`."""
    SUPPORT.hold(holder)
    after_import(_STAGE, lambda _: SUPPORT.stages_imported())
