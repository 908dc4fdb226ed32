"""What a replay must leave as it was: gradients, buffers, attributes, generators, output and logs (worker)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from nandiag.runtime.belongings.aside import Aside
from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.keeping import Belongings
from nandiag.runtime.belongings.reach import starts_of
from nandiag.runtime.frames import foreign_modes, is_foreign
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.state import Contents, equal, generators
from nandiag.runtime.tape.wraps.dropped import Dropped


def roots_of(entries: list[Entry]) -> list[nn.Module]:
    """Return the root modules that the entries call, or give to what they call (checkpointing), each once."""
    called = [entry.function for entry in entries if entry.kind == ROOT]
    given = [word for entry in entries for word in _words(entry.args, entry.kwargs)]
    return list({id(one): one for one in [*called, *given]}.values())


def _words(args: Any, kwargs: Any) -> Iterator[nn.Module]:
    for word in (*(args or ()), *(kwargs or {}).values()):
        owner = getattr(word, "__self__", word)
        if isinstance(owner, nn.Module):
            yield owner


@contextlib.contextmanager
def traceless(
    capture: Capture,
    parameters: list[Tensor],
    entries: list[Entry],
    *,
    weights_written: bool = False,
    ends: bool = True,
) -> Iterator[Belongings]:
    """Keep gradients, buffers, generators, attributes, printed and logged output as if no replay had been.

    Yields what the script's own code holds. Raises Refused, with nothing changed, where something could not be put
    back and the run does not end (``ends``); and behind it where what was forgotten was not made again.
    """
    roots = roots_of(entries)
    with quiet():
        kept = _gradients(parameters, entries)
        buffers = _copied([*(buffer for root in roots for buffer in root.buffers()), *_inner(entries)])
        written = [*(_copied(parameters) if weights_written else []), *buffers]
        contents = Contents(roots)
    states, bystanders = generators(full=True, private=private_in(entries)), Bystanders()
    aside, starts = Aside(bystanders, ends=ends), [*_datasets(capture), *roots, *starts_of(sys._getframe(1))]
    with quiet():
        versions = versions_of([*parameters, *(buffer for buffer, _ in buffers), *contents.tensors])
        belongings = Belongings(starts, bystanders, ends=ends)  # last: it may close arrays
    # Made ready while nothing has changed yet: what fails up to here needs no undoing.
    undo: list[Callable[[], object]] = [aside.settle, *kept]
    undo += [partial(_restore, buffer, value) for buffer, value in written]
    # Output comes back when what the step made is gone again, and has said what it says as it goes.
    undo += [contents.put_back, belongings.put_back, versions.close, aside.close, states.put_back]
    undo += [partial(_on_again, capture), *([capture.window.open] if capture.window.close() else [])]
    try:
        capture.bystanders, capture.off = bystanders, True
        _drop_gradients(parameters)
        aside.begin()
        belongings.begin(aside.led)
        with _without_counters(), _dual_level(entries), belongings.shared:
            yield belongings
            belongings.made_again()
    finally:
        undo_all(undo)


def _inner(entries: list[Entry]) -> list[Tensor]:
    return [one for entry in entries for held in entry.inner if (one := held()) is not None]


def _gradients(parameters: list[Tensor], entries: list[Entry]) -> list[Callable[[], object]]:
    """Return what puts the gradients of ``parameters`` back, and those that the ``entries`` drop besides."""
    beside = [(one, one.grad, one.grad.detach().clone()) for one in _dropped_by(entries) if one.grad is not None]
    kept = [(parameter, parameter.grad, parameter.requires_grad) for parameter in parameters]
    return [*(partial(_as_it_was, *one) for one in beside), *(partial(_as_trained, *one) for one in kept)]


def _dropped_by(entries: list[Entry]) -> list[Tensor]:
    """Return whose gradients calls of ``zero_grad`` drop: a look may be at a part of an optimizer's parameters."""
    calls = [entry.function for entry in entries if isinstance(entry.function, Dropped)]
    return [one for call in calls for one in call.parameters()]


def _as_it_was(parameter: Tensor, gradient: Tensor, value: Tensor) -> None:
    parameter.grad = gradient
    with quiet():
        gradient.detach().copy_(value)


def _as_trained(parameter: Tensor, gradient: Tensor | None, trained: bool) -> None:  # noqa: FBT001 - as it was
    parameter.grad = gradient
    if parameter.requires_grad is not trained:
        parameter.requires_grad_(trained)


def _drop_gradients(parameters: list[Tensor]) -> None:
    with quiet():
        for parameter in parameters:
            parameter.grad = None


def _dual_level(entries: list[Entry]) -> contextlib.AbstractContextManager[Any]:
    """Return a level of forward-mode AD where the step made duals in one, and has left it."""
    made = any(getattr(entry.function, "__name__", None) == "_make_dual" for entry in entries)
    left = made and forward_ad._current_level < 0
    return forward_ad.dual_level() if left else contextlib.nullcontext()


@contextlib.contextmanager
def _without_counters() -> Iterator[None]:
    """Take dispatch modes that are not the script's own off the stack: what they count cannot be put back."""
    if not foreign_modes():
        yield
        return
    modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(torch._C._len_torch_dispatch_stack())][::-1]
    try:
        _push(one for one in modes if not is_foreign(one))
        yield
    finally:
        while torch._C._len_torch_dispatch_stack():
            torch._C._pop_torch_dispatch_stack(None)
        _push(modes)


def _push(modes: Iterable[Any]) -> None:
    for one in modes:
        torch._C._push_on_torch_dispatch_stack(one)


def _copied(tensors: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(one, one.detach().clone()) for one in tensors if all_there([one])]


def private_in(entries: list[Entry]) -> list[torch.Generator]:
    """Return the generators of the script's own that the entries drew from."""
    kept = [entry.generators.private for entry in entries if entry.generators is not None]
    return list({id(one): one for private in kept for one, _ in private}.values())


def _datasets(capture: Capture) -> list[object]:
    newest = tuple(capture.batches.newest) if capture.batches is not None else ()
    return [dataset for one in newest if (dataset := one.dataset) is not None]


def _on_again(capture: Capture) -> None:
    capture.off = False


def undo_all(steps: Sequence[Callable[[], object]]) -> None:
    """Take each step, whatever becomes of the others, and one that fails twice; raises the first error at the end."""
    errors: list[BaseException] = []
    with quiet():
        for step in steps:
            try:
                step()
            except (Exception, Refused) as error:
                errors.append(error)
                with contextlib.suppress(Exception, Refused):
                    step()
    if errors:
        raise errors[0]


def versions_of(tensors: list[Tensor]) -> contextlib.ExitStack:
    """Return what sets version counters back on closing: a graph that is still open may need these very values."""
    kept = contextlib.ExitStack()
    for tensor in tensors:
        if not tensor.is_inference():
            kept.enter_context(torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor))
    return kept


def _restore(buffer: Tensor, value: Tensor) -> None:
    # Only what differs is written: a buffer may be shared with other processes.
    if all_there([buffer]) and not equal(buffer, value):
        buffer.detach().copy_(value)
