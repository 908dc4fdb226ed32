"""What a step hands to other threads and processes, or takes from them, which cannot be done a second time (worker)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CoroutineType
from typing import Any

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.guard import Refused

# What writes into a store of the job's, or takes from it.
_STORED = (
    "add", "append", "set", "multi_set", "compare_set", "delete_key", "queue_push", "queue_pop",
)  # fmt: skip
# Module, class, methods.
_WAYS = (
    ("queue", "Queue", ("put", "get")),
    ("multiprocessing.queues", "Queue", ("put", "get")),
    ("multiprocessing.queues", "SimpleQueue", ("put", "get")),
    ("multiprocessing.connection", "_ConnectionBase", ("send", "send_bytes", "recv", "recv_bytes", "recv_bytes_into")),
    ("multiprocessing.process", "BaseProcess", ("start",)),
    ("multiprocessing.pool", "Pool", ("apply_async", "_map_async", "imap", "imap_unordered")),
    ("concurrent.futures.thread", "ThreadPoolExecutor", ("submit",)),
    ("concurrent.futures.process", "ProcessPoolExecutor", ("submit",)),
    ("asyncio.base_events", "BaseEventLoop", ("create_task", "call_soon", "call_at", "call_soon_threadsafe")),
    ("asyncio.queues", "Queue", ("put_nowait", "get_nowait")),
    ("asyncio.locks", "Event", ("set", "clear")),
    ("socket", "socket", ("send", "sendall", "recv", "recv_into")),
    ("torch._C._distributed_c10d", "Store", _STORED),
)
# Of interest to other threads only; and archives, whose lists of members are not put back where there are others.
_SHARED = (
    ("threading", "Semaphore", ("acquire", "release")),
    ("threading", "Condition", ("notify", "notify_all")),
    ("zipfile", "ZipFile", ("open", "write", "writestr")),
    ("tarfile", "TarFile", ("add", "addfile")),
)
# What waits, maybe for ever, for what was there only once: module, class, method, what it is told not to wait by.
_WAITING = (
    ("queue", "Queue", "get", {"block": False}),
    ("threading", "Semaphore", "acquire", {"blocking": False}),
)


def ways(*, ends: bool, alone: bool) -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """Yield class, method, and what stands for it while a step is run again, which is given the method and its words.

    Where the run ``ends`` at that step all is done a second time, but nothing waits. What locks are open is put back
    where the script is ``alone`` with them, without other threads.
    """
    refused = () if ends else _WAYS if alone else (*_WAYS, *_SHARED)
    found = {(module, kind, name): _without_waiting(words) for module, kind, name, words in _WAITING}
    found |= {(module, kind, name): _refused for module, kind, names in refused for name in names}
    if not ends and not alone:
        found |= {
            ("threading", "Event", name): partial(_told, now=now) for name, now in (("set", True), ("clear", False))
        }
        found["threading", "Condition", "__enter__"] = _entered
    for (module, kind, name), instead in found.items():
        owner = getattr(sys.modules.get(module), kind, None)
        if owner is not None and hasattr(owner, name):
            yield owner, name, instead


def _refused(original: Callable[..., Any], *words: Any, **_: Any) -> Any:
    for one in words:
        if isinstance(one, CoroutineType):
            one.close()  # Python would complain that nobody awaited it
    what = getattr(original, "__qualname__", "")
    if what.startswith("pybind11") and words:  # of C++, which tells no class
        what = f"{type(words[0]).__name__}.{original.__name__}"
    raise Refused(f"the step hands work to others, or takes it, when it is run ({what}), and the run goes on after it")


def _told(original: Callable[..., None], event: Any, *, now: bool) -> None:
    if event.is_set() is not now:  # it is so already where nobody has answered the step itself
        _refused(original)


def _entered(original: Callable[..., Any], condition: Any) -> Any:
    # What is put into a list under it would be there a second time before anybody is told; a library only looks.
    if kind_of(sys._getframe(2).f_code.co_filename) == USER:
        _refused(original)
    return original(condition)


def _without_waiting(words: dict[str, bool]) -> Callable[..., Any]:
    def at_once(original: Callable[..., Any], one: Any, *_: Any, **__: Any) -> Any:
        try:
            given = original(one, **words)
        except Exception:
            given = False
        if given is False:
            raise Refused(f"the step waits for what was there only once when it is run ({original.__qualname__})")
        return given

    return at_once
