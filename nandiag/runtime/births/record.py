"""The record of what the script wrote into memory before it began to train, kept where values are bad (worker).

What a call returns, or writes into, is looked at when it returns; what is finite leaves but a mark. Looks take a
share of the time that has passed; what is too large for that, or lies on a device, is looked at when harm asks for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.births.again import Kept, Words
from nandiag.runtime.births.files.read import FromFiles
from nandiag.runtime.births.known import (
    EXPOSES,
    FILE,
    FINITE,
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
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.evidence.elements import leads_to
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.look.finite import fact, is_bad, local, norms
from nandiag.runtime.memory.known.unwritten import EMPTY
from nandiag.runtime.memory.laid import is_finite, onto_itself
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import version_of

State: TypeAlias = Birth | Filed | Finite | Waiting | Kept | None
SHARE = 0.01
CREDIT = 0.03
_SMALL = 1 << 16
_BYTES_A_SECOND = 4e9
_MOST_TOLD = 256
_MOST_COPIED = 1 << 22
_MOST_TARGETS = 4096
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
_PARTIAL = frozenset({
    "__setitem__", "index_put_", "index_copy_", "index_add_", "index_fill_", "masked_fill_", "masked_scatter_",
    "scatter_", "scatter_add_", "scatter_reduce_", "fill_diagonal_", "put_",
})  # fmt: skip
_MASKS = frozenset({"full", "full_like", "new_full", "fill_", "constant_", "masked_fill", "masked_fill_", "where"})
_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "from_dlpack"})


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
        if call.name in SILENT or _is_given_back(call, words):
            return
        began = self._now()
        for target in _written(words, output):
            self._wrote(call, words, target)
        self.spent += self._now() - began

    def _exposed(self, words: Words) -> None:
        """What is not torch's may write there from now on, unseen."""
        for one in tensors_in(words.args[:1]):
            state = self.state_of(one)
            if isinstance(state, Birth) and state.how == UNWRITTEN:
                self._put(one, _as_exposed(state))
            while isinstance(state, Kept):
                if isinstance(state.before, Birth) and state.before.how == UNWRITTEN:
                    state.before = _as_exposed(state.before)
                state = state.before

    def _wrote(self, call: Call, words: Words, target: Tensor) -> None:
        self.files.wrote(call.name, words.args, target)
        if call.name in EMPTY:
            self._put(target, Birth(UNWRITTEN, call))
            return
        prior = self.state_of(target) if words.target is not None else None
        bad, norm = self._look(target)
        if bad is None:
            sources = [self._source(call, one) for one in _given(words, target)]
            whole = words.target is None or _fills(call, target)
            # What was finite there may have been written to by numpy, or by C, since.
            rest = [] if whole else [None if prior is FINITE else prior]
            self._put(target, Waiting(call, target, norm, [*sources, *rest]))
        elif not bad:
            self._put(target, self._finite(call, target, prior))
        else:
            self._put(target, self._bad(call, words, target, prior))

    def _finite(self, call: Call, target: Tensor, prior: State) -> State:
        """A part that was written is finite; what is known of the rest stays, unless all of it is finite now."""
        if prior is None or prior is FINITE or _is_whole(call, target):
            return FINITE
        base = target._base
        rest = target if base is None else base
        return FINITE if self._look(rest)[0] is False else prior

    def _bad(self, call: Call, words: Words, target: Tensor, prior: State) -> State:
        given = [one for one in _given(words, target) if is_bad(one)]
        known = None if prior is FINITE else prior
        passes_on = bool(given) and not _turned(words, target)
        if passes_on:
            known = self._passed_on(call, given)
            if any(leads_to(one, [target]) for one in given):
                return known
        if call.name in _FROM_DATA:
            return Birth(OUTSIDE, call)
        if call.name in _MASKS and fact(target).only_neginf:
            return known or Birth(OP, call)
        if self._told >= _MOST_TOLD:
            return known or Birth(LAST, call)
        self._told += 1
        sure = not passes_on and (words.target is None or _fills(call, target))
        kept = Kept(call, words, sure=sure, before=known, most=self._room)
        self._room -= kept.size
        return kept

    def _passed_on(self, call: Call, given: Sequence[Tensor]) -> State:
        """Return whence the bad values come that a call was given, of the first of which that is known."""
        came = next((state for one in given if (state := self._came(call, one)) is not None), None)
        return Birth(OUTSIDE, call) if came is None and call.name in _FROM_DATA else came

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
            return state
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

    # ------------------------------------------------------------------ asking

    def birth_of(self, tensor: Tensor) -> Birth | None:
        """Return whence the bad values of ``tensor`` come, None where nothing is known; reads the host."""
        state = self.state_of(tensor)
        if isinstance(state, Waiting) and _since(state):
            return None
        return self._walk(state, 0)

    def _walk(self, state: State, depth: int) -> Birth | None:
        if isinstance(state, Filed):
            return _in_file(state, state.call)
        if isinstance(state, Kept):
            birth = state.birth() or self._walk(state.before, depth + 1)
            return birth if birth is not None or state.cleared else Birth(LAST, state.call)
        if isinstance(state, Waiting):
            return self._behind(state, depth)
        return state if isinstance(state, Birth) else None

    def _behind(self, state: Waiting, depth: int) -> Birth | None:
        sources = [(one, _is_bad(one)) for one in state.sources]
        worse = next((one for one, bad in sources if bad), None)
        if worse is None and depth < _DEEPEST:
            behind = next((one for one, bad in sources if bad is None and _descends(one)), None)
            birth = self._walk(behind, depth + 1)
            if birth is not None and birth.how not in {LAST, UNWRITTEN}:
                return replace(birth, facts={**birth.facts, "through": True})
        if worse is not None and depth < _DEEPEST:
            birth = self._walk(worse, depth + 1)
            # Parts that were written since may have filled all of it.
            unsure = birth is not None and birth.how == UNWRITTEN
            return replace(birth, facts={**birth.facts, "unsure": True}) if birth is not None and unsure else birth
        if worse is None and all(bad is False for _, bad in sources) and state.call.name not in _FROM_DATA:
            return Birth(OP, state.call)
        filed = next((one for one in state.sources if isinstance(one, Filed)), None)
        return Birth(LAST, state.call, facts={} if filed is None else _in_file(filed, state.call).facts)


_DEEPEST = 200
_FILLS = frozenset({
    "copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "trunc_normal_",
    "constant_", "zeros_", "ones_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
    "orthogonal_", "eye_", "dirac_", "sparse_",
})  # fmt: skip


def _as_exposed(birth: Birth) -> Birth:
    return replace(birth, facts={**birth.facts, "exposed": True})


def _written(words: Words, output: Any) -> list[Tensor]:
    """Return the tensors of floats that a call has written: what it wrote into, else what it returned."""
    if words.target is not None:
        return [words.target] if words.target.is_floating_point() else []
    many = [one for one in tensors_in(output)[:_MOST_TARGETS] if one.is_floating_point()]
    known = {storage(one) for one in tensors_in((words.args, words.kwargs))} if many else set()
    return [one for one in many if storage(one) not in known]  # a view of what was given is no value of its own


def _given(words: Words, target: Tensor) -> Iterator[Tensor]:
    """Yield the tensors of floats that went into a call, but for the memory that it wrote into."""
    own = storage(target) if words.target is not None else None
    for one in tensors_in((words.args, words.kwargs)):
        if one.is_floating_point() and one is not words.target and (own is None or storage(one) != own):
            yield one


def _is_whole(call: Call, target: Tensor) -> bool:
    """Whether the call wrote all of the memory that ``target`` lies in."""
    data = held_of(target)
    return call.name not in _PARTIAL and data.nbytes >= data.untyped_storage().nbytes()


def _is_given_back(call: Call, words: Words) -> bool:
    return len(words.args) > 1 and onto_itself(call.name, words.target, words.args[1])


def _fills(call: Call, target: Tensor) -> bool:
    """Whether an in-place call leaves nothing of what stood in the memory before."""
    return call.name in _FILLS and _is_whole(call, target)


def _turned(words: Words, target: Tensor) -> bool:
    """Whether the call made NaN, or +inf, of masks: what it was given was -inf alone."""
    made = fact(target)
    return bool(made.nan or made.posinf) and not any(
        one.nan or one.posinf for one in (fact(given) for given in _given(words, target))
    )


def _since(state: Waiting) -> bool:
    """Whether what was written was finite, or has been written over by something that was not seen."""
    if state.norm is not None:
        return math.isfinite(state.norm.item())
    target = state.target()
    return target is None or version_of(target) != state.version


def _is_bad(state: State) -> bool | None:
    """Tell whether what ``state`` tells of was bad, None where that is not known any more."""
    if state is FINITE:
        return False
    if isinstance(state, Birth | Kept):
        return True
    if not isinstance(state, Waiting):
        return None
    if state.norm is not None:
        return not math.isfinite(state.norm.item())
    target = state.target()
    return is_bad(target) if target is not None and version_of(target) == state.version else None


def _descends(state: State) -> bool:
    """Whether something that was seen bad went into what nobody looked at and is gone."""
    waiting, met = [state], 0
    while waiting and met < _DEEPEST:
        one, met = waiting.pop(), met + 1
        if isinstance(one, Waiting):
            waiting += one.sources
        elif isinstance(one, Kept) or (isinstance(one, Birth) and one.how != UNWRITTEN):
            return True
    return False


def _in_file(filed: Filed, call: Call) -> Birth:
    return Birth(FILE, call, facts={"key": filed.key, **({"file": filed.path} if filed.path else {})})
