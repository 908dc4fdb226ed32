"""An optimizer's update that made weights bad is made again under the tracer, on what is left of its inputs (worker).

The update has overwritten the values it started from. Finite gradients and state are still there; a bad parameter is
stood in for by numbers of the size it had, where it was hardly written into before then by zeros, as it may have
begun, and bad state by zeros, as are gradients that the update itself left bad; what an optimizer of the script's own
counts is set back, where that is what it goes by. So what is found is reconstructed, and said to be.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.events import Looked
from nandiag.events.words import cut
from nandiag.runtime.births.known import CLIPS
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.collectives.wraps import alone
from nandiag.runtime.early.schedule import set_at
from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of, scalars_of, site_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import BOUNDARIES, Frame, stack
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.look.weights import Began, is_of_torch
from nandiag.runtime.memory.laid import is_finite, laid_by
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.memory.there import demand, held_of
from nandiag.runtime.replay.update.counts import Counts
from nandiag.runtime.replay.update.instead import (
    MADE_UP,
    Attempt,
    attempts,
    blank_gradients,
    by_number,
    is_lost,
    kept_gradient,
    stand_in,
    with_guesses,
)
from nandiag.runtime.replay.update.tracer import UpdateTracer
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.loop.given import GIVEN, UNKNOWN, Words
from nandiag.runtime.tape.packed.words import version_of
from nandiag.runtime.tape.traceless import undo_all, versions_of

_MOST = 8
# Two initialisers and an update.
_FIRST_WRITES = 4
_MOST_BYTES = 1 << 27
_FINITE = "the update itself is finite when made again"
BY_HAND = "not all that the update was made of is there any more"
GONE = "what it held before was overwritten"
STOOD_IN = "the weight was bad when the step began, and the step is finite on numbers that stood in for it"


def look_again(
    optimizer: torch.optim.Optimizer, named: dict[str, Tensor], step: int, overwritten: Overwritten, *,
    first: Began | None,
) -> Looked:  # fmt: skip
    """Return what making the update of the ``named`` bad parameters again shows.

    ``first``: what it found, where it was the optimizer's first one, or the first since it was loaded.
    """
    bad = list(named.values())
    lost = [one for one in bad if (first is None or id(one) not in first.blank) and is_lost(one)]
    spot = Spot(None, None, stack(sys._getframe(1))[0], "optimizer", 0)
    try:
        others = _beside(optimizer, bad)
        made = bad[:_MOST] if others is None else bad
        counts = Counts(optimizer, made[:_MOST])
        zeros, asks = first is not None or any(_is_new(one, step) for one in bad), False
        for attempt in attempts(made, counts, zeros=zeros):
            if attempt.theirs == 0.0 and not asks:
                continue  # nobody was asked for anything
            begun = _as_before(optimizer, made, others, attempt, first=first)
            with contextlib.closing(counts), begun as stood, contextlib.closing(overwritten):
                counts.begin(back=attempt.back)
                found = _made_bad(optimizer, made, lost, UpdateTracer(attempt.theirs, spot, overwritten, stood))
                counts.end()
            asks |= found.asks
            if found.given:
                return _given(step, spot, list(named))
            if found.op is not None:
                looked = _found(found.op, step, list(named), _stood_in(attempt, found))
                looked = with_guesses(looked, None if attempt.size == 0 else found.guessed, into=found.into_stood)
                looked = _with_schedule(_with_settings(looked, optimizer, bad), optimizer)
                return _with_state(looked, bad, first)
    except Refused as refusal:
        return Looked("refused", "replay", step, reason=str(refusal))
    except Exception as error:
        return Looked("failed", "replay", step, reason=f"{type(error).__name__}: {cut(str(error))}")
    # An optimizer of the script's own counts, perhaps, or asks other ranks: it need not do the same again.
    whole = getattr(type(optimizer).step, "__module__", "").startswith("torch.optim.")
    reason = "made again, the update is finite"
    return Looked("finite", "replay", step, phase="optimizer", reason=reason, facts={"complete": whole})


def _is_new(parameter: Tensor, step: int) -> bool:
    """Whether it was hardly written into before: one that was trained was so in each of the steps."""
    return version_of(parameter) < max(step + 1, _FIRST_WRITES)


def _given(step: int, spot: Spot, names: list[str]) -> Looked:
    """Another rank sends the bad weights in the update: what it sent is not this rank's doing."""
    site = site_of(replace(spot, phase="collective"), "c10d.broadcast_.default")
    return Looked(
        outcome="found", method="replay", step=step, phase="optimizer", source="received", site=site,
        facts={"parameters": names[:_MOST]},
    )  # fmt: skip


class _Made(NamedTuple):
    """What an update showed: the op that makes bad values of finite ones, whether another rank gives them all."""

    op: Op | None
    given: bool
    asks: bool = False
    guessed: list[bool] | None = None
    into_stood: bool = False  # it writes into what stood in for bad state


def _made_bad(optimizer: torch.optim.Optimizer, bad: list[Tensor], lost: list[Tensor], tracer: UpdateTracer) -> _Made:
    """Make the update again; of the ``lost`` weights nothing is left but what stands in for them."""
    tracer.made_up = {key for one in lost if (key := storage(one)) is not None}
    tracer.own |= {key for one in _started(optimizer, bad) if (key := storage(one)) is not None}
    given = {storage(one) for one in _step(optimizer, tracer)}
    if all(storage(one) in given for one in bad):
        return _Made(None, given=True)
    found = origin([op for op in map(tracer.writer, left_bad(optimizer, bad)) if op is not None])
    read = None if found is None or not found.op.born else tracer.read_before(found.op)
    found = found if read is None else origin([read])
    op = found.op if found is not None and found.source == "op" else None
    if op is None:
        return _Made(None, given=False, asks=tracer.asks)
    guessed, into = tracer.of_made_up(op), op.index in tracer.into_stood
    return _Made(op, given=False, asks=tracer.asks, guessed=guessed, into_stood=into)


def _step(optimizer: torch.optim.Optimizer, tracer: UpdateTracer) -> list[Tensor]:
    """Make the update; returns what other ranks would have written in it."""
    step = type(optimizer).step
    plain = getattr(step, "__wrapped__", step)  # without hooks: those are for real updates
    args, kwargs, descends = _words(plain, optimizer)
    try:
        with alone(tracer.arrives) as made, torch.enable_grad(), tracer:
            plain(optimizer, *args, **kwargs)
    except RuntimeError as error:
        if descends and "does not require grad" in str(error):
            raise Refused("the update makes a backward of what the script gives it") from error
        raise
    return made.given


BOUNDARIES.add(id(_step.__code__))


def _words(step: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Words:
    """Return what the update is to be given; nothing where it needs nothing, and what it was given is the script's."""
    try:
        inspect.signature(step).bind(optimizer)
        needs_no_more = True
    except TypeError:
        needs_no_more = False
    try:
        words = GIVEN.of(optimizer)
    except Refused:
        if not needs_no_more:
            raise
        words = None
    if words is None and not needs_no_more:
        raise Refused(UNKNOWN)
    return words or Words((), {}, descends=False)


def left_bad(optimizer: torch.optim.Optimizer, bad: list[Tensor]) -> list[Tensor]:
    """Return what is bad of these parameters and of their state."""
    states = [optimizer.state[one] for one in bad if one in optimizer.state]
    tensors = [value for state in states if isinstance(state, dict) for value in state.values()]
    return [one for one in [*bad, *tensors] if isinstance(one, Tensor) and is_bad(one)]


@contextlib.contextmanager
def _as_before(
    optimizer: torch.optim.Optimizer, bad: list[Tensor], others: list[Tensor] | None, attempt: Attempt, *,
    first: Began | None,
) -> Iterator[list[Tensor]]:  # fmt: skip
    """Stand in for what the update of the ``bad`` started from, and put all back afterwards; yields what stands in.

    The ``others`` are updated too, from where they are; None: they are left out.
    """
    stood: list[Tensor] = []
    groups = optimizer.param_groups
    started = list(_started(optimizer, [*bad, *(others or ())]))
    demand(started)
    held = [(optimizer.state[one], _copy(optimizer.state[one])) for one in bad if one in optimizer.state]
    # What the tensors of the others hold is copied when an op writes into them.
    held += [(optimizer.state[one], _members(optimizer.state[one])) for one in others or () if one in optimizer.state]
    kept = [(one, one.detach().clone(), kept_gradient(one)) for one in bad]
    states = list(optimizer.state.items())
    wanted = {id(one) for one in bad}
    undo: list[Callable[[], object]] = [partial(setattr, optimizer, "param_groups", groups)]
    for one, value, gradient in kept:
        undo += [partial(one.detach().copy_, value), gradient]
    undo += [partial(_put_back, state, before) for state, before in held]
    undo += [partial(_put_back_all, optimizer.state, states), versions_of(started).close]
    try:
        with torch.no_grad():
            for one in bad:
                stood += _reset_state(optimizer, one, first)
                stand_in(one, 0.0 if first is not None and id(one) in first.blank else attempt.size)
            if attempt.blank:
                blank_gradients(bad)
        if others is None:
            optimizer.param_groups = [
                {**group, "params": [one for one in group["params"] if id(one) in wanted]} for group in groups
            ]
        yield stood
    finally:
        undo_all(undo)


def _beside(optimizer: torch.optim.Optimizer, bad: list[Tensor]) -> list[Tensor] | None:
    """Return the parameters that are updated with the ``bad`` ones; None where these can be updated by themselves.

    An optimizer of the script's own may go by the place of a parameter among all, as where each rank updates a part of
    them and hands it on. Where they are more than 128 MiB they are left out all the same.
    """
    wanted = {id(one) for one in bad}
    others = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in wanted]
    size = sum(one.numel() * one.element_size() for one in _started(optimizer, [*bad, *others]))
    return None if is_of_torch(optimizer) or size > _MOST_BYTES else others


def _started(optimizer: torch.optim.Optimizer, bad: list[Tensor]) -> Iterator[Tensor]:
    for one in bad:
        yield one
        state = optimizer.state.get(one)
        held = state.values() if isinstance(state, dict) else ()
        yield from (value for value in (one.grad, *held) if isinstance(value, Tensor))


def _reset_state(optimizer: torch.optim.Optimizer, parameter: Tensor, first: Began | None) -> list[Tensor]:
    """Return what stands in for bad state of which nobody knows what it was."""
    stood: list[Tensor] = []
    had = None if first is None else first.state.get(id(parameter), {})
    if had is not None and not had:
        optimizer.state.pop(parameter, None)
        return stood
    state = optimizer.state.get(parameter)
    if isinstance(state, dict):
        for key in [] if had is None else [key for key in state if key not in had]:
            del state[key]  # the update made it
        for key, value in state.items():
            if isinstance(value, Tensor) and is_bad(value):
                state[key] = finite = value.clone()
                data = held_of(finite)
                data[~torch.isfinite(data)] = 0
                stood += [finite] if had is None else []
            elif isinstance(value, Tensor) and had is not None and had[key]:
                state[key] = _with_zeros(value, had[key], parameter)
    return stood


def _with_zeros(value: Tensor, count: int, parameter: Tensor) -> Tensor:
    """Return state with the zeros that it began with: all over, or, of as many, where the update made weights bad."""
    made, bad = value.detach().clone(), ~torch.isfinite(held_of(parameter.detach()))
    data = held_of(made)
    if count == data.numel():
        data.zero_()
    elif data.shape == bad.shape and int(bad.sum()) <= count:
        data[bad] = 0
    return made


def _members(state: Any) -> Any:
    return {key: (value, None) for key, value in state.items()} if isinstance(state, dict) else state


def _copy(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {
        key: (value, value.detach().clone()) if isinstance(value, Tensor) else (value, None)
        for key, value in state.items()
    }


def _put_back(state: Any, kept: Any) -> None:
    if not isinstance(kept, dict):
        return
    restored = {}
    for key, (value, held) in kept.items():
        if held is not None:
            value.detach().copy_(held)
        restored[key] = value
    state.clear()
    state.update(restored)


def _put_back_all(states: Any, before: list[tuple[Any, Any]]) -> None:
    """Give each parameter its own state again, in the order in which the optimizer made them."""
    now = list(states.items())
    if [(id(one), id(state)) for one, state in now] != [(id(one), id(state)) for one, state in before]:
        states.clear()
        states.update(before)


def _stood_in(attempt: Attempt, found: _Made) -> dict[str, object]:
    """Say what stood in for what in an ``attempt``; a guess only where what was ``found`` was given any of it."""
    made_up: dict[str, object] = {"made_up": MADE_UP} if found.guessed is not None else {}
    return {
        **({"of_zeros": True} if attempt.size == 0 else made_up),
        **({"gradients_of_zeros": True} if attempt.blank else {}),
        **({"without_peers": "zeros" if attempt.theirs == 0.0 else "any"} if found.asks else {}),
    }


def _found(op: Op, step: int, names: list[str], stood_in: dict[str, object]) -> Looked:
    numbers = scalars_of(op)
    facts = {"reconstructed": True, **stood_in, "parameters": names[:_MOST], **numbers, **in_float64(op)}
    looked = Looked(
        outcome="found", method="replay", step=step, phase="optimizer", source="op",
        site=site_of(op.spot, str(op.func)), inputs=inputs_of(op), outputs=outputs_of(op), facts=facts,
    )  # fmt: skip
    return by_number(looked, numbers)


def _with_settings(looked: Looked, optimizer: torch.optim.Optimizer, bad: list[Tensor]) -> Looked:
    """Say what the optimizer was told for the first of the bad parameters: its eps and its betas, where it has them."""
    groups = (one for one in optimizer.param_groups if any(held is bad[0] for held in one["params"]))
    group = next(groups, {})
    eps, betas = group.get("eps"), group.get("betas")
    settings: dict[str, object] = {"eps": eps} if isinstance(eps, int | float) else {}
    if isinstance(betas, tuple | list) and all(isinstance(beta, int | float) for beta in betas):
        settings["betas"] = [float(beta) for beta in betas]
    if eps == 0 and (lines := set_at("eps")):
        settings["eps_set_at"] = lines
    return replace(looked, facts={**looked.facts, "settings": settings}) if settings else looked


def _with_state(looked: Looked, bad: list[Tensor], first: Began | None) -> Looked:
    """Say what of the bad parameters' state held zeros when it began, for those stand in it again."""
    states = [] if first is None else [first.state.get(id(one), {}) for one in bad]
    keys = sorted({str(key) for state in states for key, count in state.items() if count})
    return replace(looked, facts={**looked.facts, "began_of_zeros": keys[:_MOST]}) if keys else looked


def _with_schedule(looked: Looked, optimizer: torch.optim.Optimizer) -> Looked:
    """Say where the script sets the learning rate, where that is no number."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    if all(map(math.isfinite, rates)):
        return looked
    lines = set_at()
    return replace(looked, facts={**looked.facts, "rate_set_at": lines}) if lines else looked


def _is_finite(entry: Entry) -> bool:
    """Whether what an entry writes is known to be finite: it lays numbers there as they are."""
    return is_finite(laid_by(entry.name, entry.args, entry.kwargs))


def last_write(bad: list[Tensor], step: int, entries: list[Entry], why: str = _FINITE) -> Looked | None:
    """The script itself may have written into the parameter in this step: then its last write is the nearest known.

    ``why``: what is known besides; with :data:`BY_HAND` these writes are the update, with :data:`STOOD_IN` they came
    between the last update and this step.
    """
    memory = {storage(one) for one in bad}
    writes = [(entry, target) for entry, target in written_by(entries) if storage(target) in memory]
    writes = [one for one in writes if not _is_finite(one[0]) and one[0].name not in CLIPS]
    if not writes:
        return None
    entry, target = writes[-1]
    message = ARRIVALS.still(target)
    if message is not None:  # a collective has written there since
        return Looked("found", "tape", step, phase="optimizer", source="received", inputs=(fact(target),),
                      facts=ARRIVALS.facts_of(target))  # fmt: skip
    frames: tuple[Frame, ...] = entry.frames
    return Looked(
        outcome="found", method="tape", step=step, phase="optimizer", source="op",
        site=site_of(Spot(None, None, frames, "optimizer", 0), entry.name), outputs=(fact(target),),
        facts={"written_in_place": entry.name},
        reason=f"{why}; this is the script's last write into the parameter",
    )  # fmt: skip
