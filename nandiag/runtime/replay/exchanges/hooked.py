"""DDP's communication hooks once more, on all ranks: what is born in one has its line (worker).

A rank replays DDP's backward alone, and its hooks communicate. Where every rank found its own gradients finite, and the
run ends after this step, all of them call the hook again on what their replays made, on groups of nandiag's own.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.belongings.keeping import keeper
from nandiag.runtime.belongings.reach import content, is_followed, is_object
from nandiag.runtime.evidence.exchange.exchanged import hook_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import BOUNDARIES, USER, Frame, kind_of, stack
from nandiag.runtime.guard import Refused, guarded
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.traceless import undo_all
from nandiag.runtime.together.census import all_joined, has_peers, members, own_store, stand_apart
from nandiag.runtime.together.vigil import together

_MOST_HELD = 1_000
# Of what is kept at each step.
_MOST_KEPT = 300
_MOST_BYTES = 1 << 22

_registered: weakref.WeakKeyDictionary[nn.Module, tuple[Frame, ...]] = weakref.WeakKeyDictionary()


def watch_hooks(capture: Capture) -> None:
    """Wrap ``register_comm_hook`` of DDP: the line that registers a hook of a library's is the one to change."""
    kind: Any = nn.parallel.DistributedDataParallel
    original = kind.register_comm_hook

    @guarded("hooks")
    def note(ddp: nn.Module, frame: Any) -> None:
        capture.comm_hooks = capture.comm_hooks or Carried()
        _registered[ddp] = stack(frame, 4)[0]

    @functools.wraps(original)
    def register_comm_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self, sys._getframe(1))
        return original(self, *args, **kwargs)

    kind.register_comm_hook = register_comm_hook


class Hooks:
    """Asks the other ranks, once a step at most, whether all make the hooks of that step again, and does so."""

    def __init__(self, capture: Capture) -> None:
        self._asked = -1
        self._capture = capture

    def stand_apart(self, case: Case, roots: list[nn.Module]) -> None:
        """This rank does not come to the hooks of the step: say so, for others may be waiting for it."""
        if self._is_due(case, roots):
            self._asked = case.step
            stand_apart(_store(case))

    def again(self, case: Case, seen: Evidence, looked: Looked, seconds: float) -> Looked:
        """Return what the hooks showed where ``looked`` is finite and all ranks come; else ``looked``. Never raises."""
        if not self._is_due(case, seen.roots) or looked.outcome != "finite" or seen.doubts() or not case.ends:
            return looked
        self._asked = case.step
        try:
            if not all_joined(_store(case), members())[0]:
                return looked
            with together(case.step, seconds) as joined:
                seen.tracer.instead = joined.instead
                with _as_it_was(self._capture.comm_hooks, seen.tracer, seen.roots) as spoiled:
                    results = _made_again(seen, case)
                joined.through()
                with seen.tracer.still(), torch.no_grad():
                    told = _told(case, seen, results, looked)
                return replace(told, facts={**told.facts, "reconstructed": True}) if spoiled else told
        except (Exception, Refused) as error:  # the script's own code may raise, or another rank fail in it
            why = f"the communication hook could not be run again ({type(error).__name__}: {str(error)[:200]})"
            return replace(looked, reason=f"{looked.reason}; {why}")

    def _is_due(self, case: Case, roots: list[nn.Module]) -> bool:
        return self._asked != case.step and has_peers() and any(hook_of([root]) is not None for root in roots)


def _store(case: Case) -> Any:
    return own_store(f"hooks/{case.step}")


def _told(case: Case, seen: Evidence, results: list[Tensor], looked: Looked) -> Looked:
    """Return the origin of what is bad in ``results``; where they show none, ``looked`` with what they showed."""
    bad = [one for one in results if seen.tracer.bad(one)]
    found = origin([op for one in bad if (op := seen.tracer.writer(one)) is not None])
    if found is None or found.source == "outside":
        shown = "bad values came from the hook's own state" if bad else "all that came out of it was finite"
        why = f"{looked.reason}; called again, {shown}"
        return replace(looked, reason=why, facts={**looked.facts, "hook_again": shown, **_written_at(seen.roots)})
    born = seen.found(case, found)
    return replace(born, facts={**born.facts, "comm_hook": hook_of(seen.roots)})


def _written_at(roots: list[nn.Module]) -> dict[str, object]:
    """Return where the hook is written, of a function of the script's."""
    hook: Any = next((one[0] for one in reversed(_hooks_of(roots)) if isinstance(one, tuple)), None)
    while isinstance(hook, partial):
        hook = hook.func
    if not hasattr(hook, "__code__") and is_object(hook):
        hook = type(hook).__call__
    code = getattr(hook, "__code__", None)
    own = code is not None and kind_of(code.co_filename) == USER
    return {"hook_at": [code.co_filename, code.co_firstlineno]} if own and code is not None else {}


@contextlib.contextmanager
def _as_it_was(carried: Carried | None, tracer: Tracer, roots: list[nn.Module]) -> Iterator[bool]:
    """Let what the hooks carry from step to step be as before this step; yields whether any of it is stood in for.

    Where that was too much to keep, 0 stands in for what the bad step has spoilt (error feedback).
    """
    with tracer.still(), torch.no_grad():
        now = Held(list(_reached(_hooks_of(roots))))
        before = None if carried is None else carried.kept
        spoiled = [] if before is not None else [one for one in now.tensors if is_bad(one)]
        if before is not None:
            before.put_back()
        for one in spoiled:
            one.detach().nan_to_num_(0.0, 0.0, 0.0)
    try:
        yield bool(spoiled)
    finally:
        with tracer.still(), torch.no_grad():
            now.put_back()


class Carried:
    """What the hooks of DDP carry from step to step, as it was when the newest backward began: 4 MB at most."""

    def __init__(self) -> None:
        self.kept: Held | None = None
        self._too_much = False

    @guarded("hooks")
    def keep(self) -> None:
        """A backward begins."""
        if self._too_much:
            return
        self.kept = None
        found = list(_reached(_hooks_of(_registered)))
        size = sum(one.numel() * one.element_size() for one in found if isinstance(one, Tensor))
        self._too_much = len(found) > _MOST_KEPT or size > _MOST_BYTES
        if not self._too_much:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self.kept = Held(found)


class Held:
    """What the objects ``found`` hold now: members, attributes, numbers, and the globals that functions name."""

    def __init__(self, found: list[object]) -> None:
        self.tensors = [one for one in found if isinstance(one, Tensor)]
        self._numbers = [(one, one.detach().clone()) for one in self.tensors]
        self._undo = [undo for one in found for undo in _keepers(one)]

    def put_back(self) -> None:
        """Set all of it to what it was."""
        undo_all([*self._undo, *(partial(one.detach().copy_, value) for one, value in self._numbers)])


def _hooks_of(roots: Iterable[nn.Module]) -> list[object]:
    return [hook for root in roots for hook in getattr(root, "_comm_hooks", None) or ()]


def _keepers(one: Any) -> Iterator[Callable[[], object]]:
    """Yield what puts one object back that was reached."""
    for thing in (one, getattr(one, "__dict__", None)):
        undo = None if thing is None else keeper(thing, ())
        if undo is not None:
            yield undo
    if type(one) is FunctionType:
        yield partial(one.__globals__.update, _named(one))


def _reached(hooks: list[object]) -> Iterator[object]:
    """Yield the hooks and all that they hold, once each."""
    seen: dict[int, object] = {}
    waiting = list(hooks)
    while waiting and len(seen) < _MOST_HELD:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, nn.Module | ModuleType | type | str | bytes):
            seen[id(one)] = one
            yield one
            waiting += () if isinstance(one, Tensor) else _inside(one)


def _inside(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, list | tuple | set | deque):
        return list(one)
    if type(one) is FunctionType:
        given = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        return [*given, *(content(cell) for cell in one.__closure__ or ()), *_named(one).values()]
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values(), *vars(one).values()]
    slots = [getattr(one, name, None) for name in getattr(type(one), "__slots__", ())]
    shared = [value for value in vars(type(one)).values() if is_followed(value)] if is_object(one) else []
    held = getattr(one, "__self__", None), getattr(one, "__func__", None)
    return [*held, *slots, *getattr(one, "__dict__", {}).values(), *shared]


def _named(function: FunctionType) -> dict[str, Any]:
    """Return the globals that a function of the script's names, those that it may change by running."""
    if kind_of(function.__code__.co_filename) != USER:
        return {}
    given, names = function.__globals__, _names_in(function.__code__)
    return {name: given[name] for name in names if name in given and _may_change(given[name])}


def _may_change(value: object) -> bool:
    return is_followed(value) or value is None or isinstance(value, int | float)


@functools.lru_cache(maxsize=256)
def _names_in(code: CodeType) -> tuple[str, ...]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return (*code.co_names, *(name for one in inner for name in _names_in(one)))


def _made_again(seen: Evidence, case: Case) -> list[Tensor]:
    """Call each hook for each bucket, in DDP's order; returns what the buckets hold in the end, of any float dtype."""
    tracer, left = seen.tracer, seen.result.shared.left if seen.result.shared is not None else {}
    tracer.joint = tracer.waits = True
    results: list[Tensor] = []
    with torch.no_grad():
        for root in seen.roots:
            hooks: Any = getattr(root, "_comm_hooks", None)
            if not hooks:
                continue
            for bucket in root.reducer._get_zeros_like_grad_buckets():  # type: ignore[union-attr,operator]
                with tracer.still():
                    _fill(bucket, case.scale, left)
                micro_step = tracer.spots.base.micro_step
                tracer.spots.base = Spot(None, None, _registered.get(root, ()), "collective", micro_step)
                state, hook = hooks[-1][1], hooks[-1][0]
                results.append(_called(hook, state, bucket))
    return results


def _fill(bucket: Any, scale: Tensor | None, left: dict[int, Tensor]) -> None:
    """Lay into a bucket what backward left as gradients in the replay, which DDP does before it calls the hook."""
    factor = 1.0 if scale is None else float(scale)
    for parameter, place in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient = left.get(id(parameter), parameter.grad)
        if gradient is not None:
            place.copy_(gradient)
    if factor != 1.0 and math.isfinite(factor):
        bucket.buffer().mul_(factor)


def _called(hook: Callable[[Any, Any], Any], state: Any, bucket: Any) -> Tensor:
    result = hook(state, bucket).wait()
    tensor: Tensor = result[0] if isinstance(result, list | tuple) else result
    return tensor


BOUNDARIES.add(id(_called.__code__))
