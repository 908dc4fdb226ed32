"""The record of what the script wrote into memory before it began to train, kept where values are bad (worker).

What a call returns, or writes into, is looked at when it returns; what is finite leaves but a mark. Looks take a
share of the time that has passed; what is too large for that, or lies on a device, is looked at when harm asks for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.births.again import Kept, Words
from nandiag.runtime.births.files.read import FromFiles
from nandiag.runtime.births.known import (
    EXPOSES,
    FINITE,
    FROM_DATA,
    LAST,
    OP,
    OUTSIDE,
    RECEIVED,
    UNWRITTEN,
    Birth,
    Call,
    Filed,
    Finite,
    Waiting,
)
from nandiag.runtime.births.parts.asked import as_exposed, birth_of
from nandiag.runtime.births.parts.calls import Write, given_to, is_given_back, part_of, targets_of, turned
from nandiag.runtime.births.parts.parts import Moved, Parts, Picked, moved, picked, written
from nandiag.runtime.births.parts.place import FIRST, first_bad
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.evidence.elements import leads_to
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.look.finite import fact, is_bad, local, norms
from nandiag.runtime.memory.known.unwritten import EMPTY
from nandiag.runtime.memory.laid import is_finite
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.tape.packed.nested import tensors_in

State: TypeAlias = Birth | Filed | Finite | Waiting | Kept | Parts | Moved | Picked | None
SHARE = 0.01
CREDIT = 0.03
_SMALL = 1 << 16
_BYTES_A_SECOND = 4e9
_MOST_TOLD = 256
_MOST_COPIED = 1 << 22
_MOST_KEYS = 1 << 16
_SWEEP = 4096
# What they return is not a value of floats of its own, or lies where its input lies.
SILENT = frozenset({
    "__get__", "__set__", "requires_grad_", "detach", "detach_", "view", "view_as", "expand", "expand_as", "transpose",
    "permute", "t", "squeeze", "unsqueeze", "unflatten", "select", "narrow", "diagonal", "as_strided", "share_memory_",
    "is_pinned", "size", "stride", "dim", "numel", "register_hook", "storage", "untyped_storage", "set_",
    "_typed_storage", "__hash__", "__len__", "is_floating_point", "is_complex", "data_ptr", "element_size", "unbind",
    "__iter__", "__repr__", "__format__", "item", "tolist", "numpy", "nelement", "is_contiguous", "split", "chunk",
})  # fmt: skip
_MASKS = frozenset({"full", "full_like", "new_full", "fill_", "constant_", "masked_fill", "masked_fill_", "where"})


class Record:
    """What is known of live memory, by its storage; ``spent`` are the seconds that the record itself has taken."""

    def __init__(self) -> None:
        self._now = time.thread_time  # what waits for a processor that others use is no cost of ours
        self._began = time.perf_counter()
        self._states: dict[int, State] = {}
        self._pins: dict[int, StorageWeakRef] = {}
        self._sweep_at = _SWEEP
        self._told = 0
        self._bytes_a_second = _BYTES_A_SECOND
        self._room = _MOST_COPIED
        self.files = FromFiles()
        self.spent = 0.0

    def left(self) -> float:
        """Return for how many seconds more the record may look; negative where it has taken more than its share."""
        return CREDIT + SHARE * (time.perf_counter() - self._began) - self.spent

    def state_of(self, tensor: Tensor) -> State:
        """Return what is known of the memory that ``tensor`` lies in."""
        key = storage(tensor)
        return None if key is None else self._states.get(key)

    def read(self, named: Sequence[tuple[str, Tensor]], call: Call, path: str | None) -> None:
        """Tensors were read from a file, by their keys in it."""
        for name, tensor in named:
            filed = Filed(call, name, path)
            self._put(tensor, filed)
            self.files.put(tensor, filed)

    def forget(self, tensor: Tensor) -> None:
        """Something that is not looked at has written into ``tensor``."""
        self.files.forget(tensor)
        if self._states:
            self._states.pop(storage(tensor) or 0, None)

    def forget_memory(self, key: int) -> None:
        """The storage ``key`` is another one's now, or holds what is not looked at."""
        self._states.pop(key, None)

    def lays(self, tensor: Tensor, call: Call) -> None:
        """The loop has a number that is none written there."""
        self._put(tensor, Birth(LAST, call, op="aten.fill_.Scalar", facts={"laid": True}))

    def leaves(self, tensor: Tensor, laid: Any) -> bool:
        """Whether ``laid``, which is about to be written there, is finite, and so no part of what is bad there."""
        if self.state_of(tensor) is None:
            return True
        return is_finite(laid)

    def lose(self) -> None:
        """Calls are not seen any more, so that nothing that is known need hold."""
        self._states.clear()
        self._pins.clear()
        self.files.lose()

    def keep_bad(self) -> None:
        """Training begins: from now on only what is bad, or was not looked at, matters."""
        self._states = {key: state for key, state in self._states.items() if state is not FINITE}
        self._pins = {key: pin for key, pin in self._pins.items() if key in self._states}

    # ------------------------------------------------------------------ writing

    def saw(self, call: Call, words: Words, output: Any) -> None:
        """A call returned ``output``; must run without gradients, and without modes that see what it does itself."""
        if call.name in EXPOSES:
            self._exposed(words)
        if call.name in SILENT or is_given_back(call, words):
            return
        began = self._now()
        for target in targets_of(words, output):
            self._wrote(call, words, target)
        self.spent += self._now() - began

    def _exposed(self, words: Words) -> None:
        """What is not torch's may write there from now on, unseen."""
        for one in tensors_in(words.args[:1]):
            state = self.state_of(one)
            if (exposed := as_exposed(state)) is not state:
                self._put(one, exposed)

    def _wrote(self, call: Call, words: Words, target: Tensor) -> None:
        self.files.wrote(call.name, words.args, target)
        if call.name in EMPTY:
            self._put(target, Birth(UNWRITTEN, call))
            return
        prior = self.state_of(target) if words.target is not None else None
        write = Write(call, words, target, part_of(call, words, target), prior)
        bad, norm = self._look(write.part)
        if bad is False:
            self._put(target, self._finite(write))
            return
        state = self._bad(write) if bad else self._unseen(write, norm)
        self._put(target, written(prior, write.part, state, call) if write.of_part else state)

    def _unseen(self, write: Write, norm: Tensor | None) -> Waiting:
        sources = [self._source(write.call, one) for one in given_to(write.words, write.target)]
        # What was finite there may have been written to by numpy, or by C, since.
        rest = [] if write.own else [write.before]
        return Waiting(write.call, write.target, norm, [*sources, *rest])

    def _finite(self, write: Write) -> State:
        """A part that was written is finite; what is known of the rest stays, unless all of it is finite now."""
        prior: State = write.prior
        if prior is None or prior is FINITE or write.whole:
            return FINITE
        base = write.target._base
        rest = write.target if base is None else base
        return FINITE if self._look(rest)[0] is False else prior

    def _bad(self, write: Write) -> State:
        call, part = write.call, write.part
        given = [one for one in given_to(write.words, write.target) if is_bad(one)]
        known: State = write.before
        passes_on = bool(given) and not turned(write.words, write.target, part)
        came = self._passed_on(write, given) if passes_on else None
        if passes_on and known is None and (isinstance(came, Picked) or any(leads_to(one, [part]) for one in given)):
            return came
        if call.name in FROM_DATA:
            return Birth(OUTSIDE, call)
        if call.name in _MASKS and fact(part).only_neginf:
            return known or Birth(OP, call)
        sure = write.own and not passes_on
        if self._told >= _MOST_TOLD:
            return Birth(OP, call) if sure else came or known or Birth(LAST, call)
        self._told += 1
        kept = Kept(call, write.words, (known, came), sure=sure, most=self._room)
        self._room -= kept.size
        return kept

    def _passed_on(self, write: Write, given: Sequence[Tensor]) -> State:
        """Return whence the bad values come that a call was given, of the first of which that is known."""
        call, many = write.call, [self._came(write.call, one) for one in given]
        found = next((pair for pair in zip(given, many, strict=True) if pair[1] is not None), None)
        if found is None:
            return Birth(OUTSIDE, call) if call.name in FROM_DATA else None
        return picked(write, given, many) or moved(found[1], found[0], write.part)

    def _came(self, call: Call, given: Tensor) -> State:
        """Return whence the bad values that a call was given come, None where the record did not see them made."""
        state = self.state_of(given)
        if state is not None and state is not FINITE:
            return state
        message = ARRIVALS.still(given)  # else what was finite was written to by numpy, or by C
        return None if message is None else Birth(RECEIVED, call, facts=message.facts())

    def _source(self, call: Call, given: Tensor) -> State:
        """Return what is known of what goes into a call; what was seen finite is looked at when it is asked for."""
        state = self.state_of(given)
        if state is not FINITE:
            return moved(state, given, None)
        data = local(given)
        if data is not None and data.device.type == "cpu" and data.numel() <= _SMALL:
            return None if is_bad(given) else FINITE
        return Waiting(call, given, None, [None])

    def finds_bad(self, tensor: Tensor) -> bool | None:
        """Whether ``tensor`` is bad, None where there is no time to look; reads the host."""
        data = local(tensor)
        if data is None or data.nbytes / self._bytes_a_second > self.left():
            return None
        began = self._now()
        found = is_bad(data)
        self.spent += self._now() - began
        return found

    def _look(self, tensor: Tensor) -> tuple[bool | None, Tensor | None]:
        """Return whether ``tensor`` is bad, None where it was not looked at, and a number on its device that tells."""
        data = local(tensor)
        if data is None:
            return False, None
        if data.device.type != "cpu":
            found = norms([data])
            return None, found[0] if found else None
        if data.numel() > _SMALL:
            return self._look_at_large(data), None
        finite = math.isfinite(norms([data])[0].item())
        return not finite and is_bad(data), None

    def _look_at_large(self, data: Tensor) -> bool | None:
        """Look at it where that fits into what is left, by the speed of the looks before."""
        if data.nbytes / self._bytes_a_second > self.left() / 2:
            return None
        began = self._now()
        finite = math.isfinite(norms([data])[0].item())
        self._bytes_a_second = min(_BYTES_A_SECOND, data.nbytes / max(self._now() - began, 1e-9))
        return not finite and is_bad(data)

    def _put(self, tensor: Tensor, state: State) -> None:
        key = storage(tensor)
        if key is None:
            return
        if key not in self._states:
            self._pin(key, tensor)
        self._states[key] = state

    def _pin(self, key: int, tensor: Tensor) -> None:
        # A weak reference keeps the address of a storage from being given to another one, not its memory.
        data = held_of(tensor)
        self._pins[key] = StorageWeakRef(data.untyped_storage())
        if len(self._pins) >= self._sweep_at:
            self._pins = {one: pin for one, pin in self._pins.items() if not pin.expired()}
            self._states = {one: state for one, state in self._states.items() if one in self._pins}
            self._sweep_at = max(_SWEEP, 2 * len(self._pins))

    def birth_of(self, tensor: Tensor, at: int | None = FIRST) -> Birth | None:
        """Return whence the bad values of ``tensor`` come, None where nothing is known; reads the host.

        ``at`` is the byte of its memory where the bad element lies that is asked for, None where that is not known.
        """
        state = self.state_of(tensor)
        return None if state is None or state is FINITE else birth_of(state, first_bad(tensor) if at == FIRST else at)
