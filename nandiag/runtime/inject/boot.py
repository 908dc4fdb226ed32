"""What happens in a worker before the first line of user code: open the rank file, wait for torch, guard the exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from nandiag import settings
from nandiag.runtime import stacklevel
from nandiag.runtime.inject import ending
from nandiag.runtime.inject.after_import import after_import, forget
from nandiag.runtime.inject.process import Kind, end_with_launcher, kind
from nandiag.runtime.recorder import RECORDER
from nandiag.store.layout import RunFolder

_TORCH = "torch"


def boot(how: str) -> None:
    """Attach the runtime to this process; ``how`` is the way in, ``site`` or ``exec``. Raises nothing for a helper."""
    what = kind()
    if what is Kind.HELPER:
        return
    if stopped_before():
        os._exit(0)  # elastic has started anew a run that nandiag stopped: there is nothing left to do in it
    with contextlib.suppress(Exception):
        end_with_launcher()
    RECORDER.configure(settings.from_env(), how, alone=what is Kind.ALONE)
    if what is Kind.WORKER:
        RECORDER.attach(settings.place())
    os.register_at_fork(after_in_child=_forked)
    ending.install()
    atexit.register(ending.at_exit)
    with contextlib.suppress(Exception):
        stacklevel.begin()
    after_import(_TORCH, _arm)


def stopped_before() -> bool:
    """Whether nandiag stopped an earlier attempt of this run."""
    folder = RunFolder.at(settings.from_env().folder)
    return settings.place().attempt > 0 and folder.stopped_file.exists()


def _arm(module: object) -> None:
    del module
    try:
        from nandiag.runtime.watch.arm import arm

        arm()
    except Exception as error:
        RECORDER.dark("arm", error)


def _forked() -> None:
    # A forked child shares our descriptors: it must neither write to them nor be taken for its parent's rank.
    RECORDER.forked()
    if _TORCH not in sys.modules:
        forget()
