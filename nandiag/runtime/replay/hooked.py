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
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.belongings.reach import content
from nandiag.runtime.evidence.exchanged import hook_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import BOUNDARIES, Frame, stack
from nandiag.runtime.guard import Refused, guarded
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.trace import Tracer
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.together.census import all_joined, has_peers, members, own_store, stand_apart
from nandiag.runtime.together.vigil import together

_MOST_HELD = 1_000

_registered: weakref.WeakKeyDictionary[nn.Module, tuple[Frame, ...]] = weakref.WeakKeyDictionary()


def watch_hooks(capture: Capture) -> None:
    """Wrap ``register_comm_hook`` of DDP: the line that registers a hook of a library's is the one to change."""
    kind: Any = nn.parallel.DistributedDataParallel
    original = kind.register_comm_hook

    @guarded("hooks")
    def note(ddp: nn.Module, frame: Any) -> None:
        capture.comm_hooks = True
        _registered[ddp] = stack(frame, 4)[0]

    @functools.wraps(original)
    def register_comm_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self, sys._getframe(1))
        return original(self, *args, **kwargs)

    kind.register_comm_hook = register_comm_hook


class Hooks:
    """Asks the other ranks, once a step at most, whether all make the hooks of that step again, and does so."""

    def __init__(self) -> None:
        self._asked = -1

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
                with _without_damage(seen.tracer, seen.roots) as spoiled:
                    results = _made_again(seen.tracer, case, seen.roots)
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
        return replace(looked, reason=why, facts={**looked.facts, "hook_again": shown})
    born = seen.found(case, found)
    return replace(born, facts={**born.facts, "comm_hook": hook_of(seen.roots)})


@contextlib.contextmanager
def _without_damage(tracer: Tracer, roots: list[nn.Module]) -> Iterator[bool]:
    """Let what the hooks carry from step to step be finite meanwhile; yields whether any of it was bad.

    The bad step has spoilt it (error feedback); 0 stands in for what it was.
    """
    carried = [one for root in roots for hook in getattr(root, "_comm_hooks", None) or () for one in _carried(hook)]
    with tracer.still(), torch.no_grad():
        spoiled = [(one, one.detach().clone()) for one in carried if is_bad(one)]
        for one, _ in spoiled:
            one.detach().nan_to_num_(0.0, 0.0, 0.0)
    try:
        yield bool(spoiled)
    finally:
        with tracer.still(), torch.no_grad():
            for one, value in spoiled:
                one.detach().copy_(value)


def _carried(hook: object) -> list[Tensor]:
    """Return the tensors that a hook and its state hold: in containers, attributes and closures."""
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = [hook]
    while waiting and len(seen) < _MOST_HELD:
        one = waiting.pop()
        if isinstance(one, Tensor):
            found.append(one)
        elif id(one) not in seen and not isinstance(one, nn.Module | ModuleType | type | str | bytes):
            seen.add(id(one))
            waiting += _inside(one)
    return found


def _inside(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, list | tuple | set):
        return list(one)
    cells = [content(cell) for cell in getattr(one, "__closure__", None) or ()]
    slots = [getattr(one, name, None) for name in getattr(type(one), "__slots__", ())]
    return [getattr(one, "__self__", None), *cells, *slots, *getattr(one, "__dict__", {}).values()]


def _made_again(tracer: Tracer, case: Case, roots: list[nn.Module]) -> list[Tensor]:
    """Call each hook for each bucket, in DDP's order; returns what the buckets hold in the end, of any float dtype."""
    tracer.joint = tracer.waits = True
    results: list[Tensor] = []
    with torch.no_grad():
        for root in roots:
            hooks: Any = getattr(root, "_comm_hooks", None)
            if not hooks:
                continue
            for bucket in root.reducer._get_zeros_like_grad_buckets():  # type: ignore[union-attr,operator]
                with tracer.still():
                    _fill(bucket, case.scale)
                tracer.spot = Spot(None, None, _registered.get(root, ()), "collective", tracer.spot.micro_step)
                state, hook = hooks[-1][1], hooks[-1][0]
                results.append(_called(hook, state, bucket))
    return results


def _fill(bucket: Any, scale: Tensor | None) -> None:
    """Lay into a bucket what the replay left as gradients, which DDP does before it calls the hook."""
    factor = 1.0 if scale is None else float(scale)
    for parameter, place in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if parameter.grad is not None:
            place.copy_(parameter.grad)
    if factor != 1.0 and math.isfinite(factor):
        bucket.buffer().mul_(factor)


def _called(hook: Callable[[Any, Any], Any], state: Any, bucket: Any) -> Tensor:
    result = hook(state, bucket).wait()
    tensor: Tensor = result[0] if isinstance(result, list | tuple) else result
    return tensor


BOUNDARIES.add(id(_called.__code__))
