"""Which messages that were only asked for, or batches of them, the script has waited for (worker).

What it reads before may not have come yet: what lies there then was never sent by anybody.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from nandiag.runtime.collectives.ring import Call
from nandiag.runtime.tracebacks import pass_on

# Whatever else the script asks of a work may be how it waits.
_WAITS = ("wait", "synchronize", "result", "get_future", "block_current_stream")
_POLLS = ("is_completed", "is_success")
_MOST = 1024


class Waited:
    """The works that were not waited for; they are listened to once somebody has any."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[weakref.ref[Any], list[Call]]] = {}
        self._is_completed: Callable[[Any], Any] | None = None

    def begun(self, calls: list[Call], returned: Any) -> None:
        """Calls returned a work, or a list of them: one each, or one for all."""
        works = returned if isinstance(returned, list) else [returned]
        if not works or not any(call.op == "irecv" for call in calls):
            return
        self._listen()
        each = len(works) == len(calls)
        for index, work in enumerate(works):
            if isinstance(work, dist.Work) and type(work).wait is dist.Work.wait:  # else it is not known how it waits
                self._note(work, [calls[index]] if each else calls)

    def _note(self, work: Any, calls: list[Call]) -> None:
        while len(self._calls) >= _MOST:
            for call in self._calls.pop(next(iter(self._calls)))[1]:
                call.waited = None
        known = weakref.ref(work)
        self._calls[id(work)] = known, calls
        for call in calls:
            call.waited, call.work = False, known

    def _listen(self) -> None:
        if hasattr(dist.Work.wait, "tells_waited"):
            return
        self._is_completed = dist.Work.is_completed
        for name in (*_WAITS, *_POLLS):
            original = getattr(dist.Work, name, None)
            if original is not None:
                setattr(dist.Work, name, self._heard(original, polls=name in _POLLS))
        dist.Work.wait.tells_waited = True  # type: ignore[attr-defined]

    def _heard(self, original: Callable[..., Any], *, polls: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # Dynamo traces no further into ours
                return original(*args, **kwargs)
            try:
                answer = original(*args, **kwargs)
            except BaseException as error:
                pass_on(error)
                raise
            if args and (answer or not polls):
                self._ends(args[0])
            return answer

        return method

    def _ends(self, work: Any) -> None:
        known = self._calls.get(id(work))
        if known is not None and known[0]() is work:
            del self._calls[id(work)]
            for call in known[1]:
                call.waited = True

    def is_open(self, call: Call, *, on_host: bool) -> bool:
        """Whether nobody has waited for what ``call`` began, and it is not through as far as its work tells.

        On a device the script may have waited by other ways.
        """
        work = None if call.work is None else call.work()
        if call.waited is not False:
            return False
        if work is None or self._is_completed is None:
            return on_host
        return not self._is_completed(work)


WAITED = Waited()
