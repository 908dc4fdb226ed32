"""Checkpoints that this run writes: which are saved bad, what made them so, and when they are loaded (worker).

A file is known by its inode, so that one that was written under another name and moved is the same; one in memory by
what it holds.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.belongings.world.files import number_of
from nandiag.runtime.births.files.plain import runs_torch_alone
from nandiag.runtime.births.known import FILE, OP, Birth, Call
from nandiag.runtime.births.record import Record
from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of, scalars_of
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import Frame, best
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import fact, is_bad, local
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.replay.phases import phases_of
from nandiag.runtime.replay.rerun import Player
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.written import VIEWS, written_by
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Given
from nandiag.runtime.tape.state import generators
from nandiag.runtime.tape.traceless import private_in
from nandiag.runtime.unwarned import unwarned

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

_MOST_FILES, _MOST_LOADS, _MOST_TENSORS = 64, 4, 16
_MOST_CALLS = 256
_MOST_LOOKS = 16
_LARGEST = 1 << 24
# In the place of a device's number; no larger ones are read through, in bytes.
_IN_MEMORY, _LARGEST_IN_MEMORY = -1, 1 << 26
Named = Iterable[tuple[str, Tensor]]


class Saved(NamedTuple):
    """A file as it was saved bad: where, in which step, and by key what is known of each bad tensor."""

    call: Call
    step: int
    bad: dict[str, Birth | None]


class Loaded(NamedTuple):
    """A bad tensor that was loaded in ``step``: its key in the file, where it is bad, how this process had saved it."""

    key: str
    mask: Tensor
    path: str
    call: Call
    step: int
    saved: Saved | None


class Saves:
    """The bad files among those that this process wrote, and what was bad in those that it loaded."""

    def __init__(self, record: Record, known: Callable[[Tensor], Birth | None]) -> None:
        self._record = record
        self._known = known
        self._files: dict[tuple[int, int], Saved] = {}
        self._loaded: deque[Loaded] = deque(maxlen=_MOST_LOADS * _MOST_TENSORS)
        self._asked: dict[str, Saved] = {}  # by path: saves that other threads are at
        self._looks = 0
        self.watched: Callable[[Tensor], Op | None] | None = None  # where each op is looked at, which one made a tensor

    @property
    def any(self) -> bool:
        """Whether anything bad was loaded."""
        return bool(self._loaded)

    @property
    def under_way(self) -> bool:
        """Whether another thread is at a save: it is not seen to end while a step is run again."""
        return bool(self._asked)

    def saved(self, file: Any, named: Named, call: Call, tape: Tape | None, step: int) -> None:
        """These tensors were saved to ``file``; must run without gradients, unseen by modes of ours."""
        key = _inode(file)
        if key is None:
            return
        self._files.pop(key, None)
        asked = self._asked.pop(_path(file), None)
        saved = Saved(call, step, self._bad(named, tape)) if asked is None or not asked.bad else asked
        if saved.bad:
            self._files[key] = saved if asked is None else saved._replace(call=asked.call, step=asked.step)
            if len(self._files) > _MOST_FILES:
                self._files.pop(next(iter(self._files)))

    def asked(self, file: Any, named: Named, call: Call, tape: Tape | None, step: int) -> None:
        """What these tensors hold now will be saved to ``file`` by another thread; as in :meth:`saved`."""
        path = _path(file)
        if not path:
            return
        self._asked[path] = Saved(call, step, self._bad(named, tape))
        if len(self._asked) > _MOST_FILES:
            self._asked.pop(next(iter(self._asked)))

    def _bad(self, named: Named, tape: Tape | None) -> dict[str, Birth | None]:
        bad = [(name, one) for name, one in named if self._is_harmful(name, one)][:_MOST_TENSORS]
        if not bad or self._looks >= _MOST_LOOKS:
            return {}
        self._looks += 1
        return {name: self._birth(one, tape) for name, one in bad}

    def loaded(self, file: Any, named: Named, call: Call, step: int) -> None:
        """These tensors were read from ``file`` in ``step``."""
        key = _inode(file) if self._files else None
        saved = None if key is None else self._files.get(key)
        path = name_of(file)
        met = 0
        for name, one in named:
            mask = self._mask(name, one, saved)
            if mask is not None and met < _MOST_TENSORS:
                met += 1
                own = saved if saved and name in saved.bad else None
                self._loaded.append(Loaded(name, mask, path, call, step, own))

    def _mask(self, name: str, tensor: Tensor, saved: Saved | None) -> Tensor | None:
        """Return where a tensor that was loaded is bad, None where it is not, or there is no time to look."""
        data = local(tensor)
        if data is None or data.numel() > _LARGEST:
            return None
        bad = is_bad(data) if saved is not None and name in saved.bad else self._is_harmful(name, tensor)
        return ~torch.isfinite(data) if bad else None

    def birth_of(self, name: str, tensor: Tensor, since: int) -> Birth | None:
        """Return the birth of the bad values of a weight, by its name, where they were loaded ``since`` that step."""
        data = local(tensor)
        for one in reversed(tuple(self._loaded)):
            if data is not None and one.step >= since and _is_called(one.key, name) and _holds(data, one.mask):
                birth = _told(one.key, one.path, one.call, one.saved)
                return replace(birth, facts={**birth.facts, "loaded_step": one.step})
        return None

    def of_own_file(self, birth: Birth) -> Birth:
        """Return what made a tensor bad before this very process saved it to the file that it was read from."""
        path, key = birth.facts.get("file"), birth.facts.get("key")
        saved = self._files.get(_inode(path) or (-1, -1)) if isinstance(path, str) else None
        if birth.how != FILE or saved is None or not isinstance(key, str) or key not in saved.bad:
            return birth
        return _told(key, os.path.basename(str(path)), birth.call, saved)

    def _is_harmful(self, name: str, tensor: Tensor) -> bool:
        """-Inf alone is a mask, and one number may be the best loss so far where it is not called as parameters are."""
        may_be = tensor.is_floating_point() and (tensor.numel() > 1 or "." in _key(name))
        return may_be and bool(self._record.finds_bad(tensor)) and not fact(tensor).only_neginf

    def _birth(self, tensor: Tensor, tape: Tape | None) -> Birth | None:
        made = None if tape is None else tape.maker(tensor)
        op = self.watched(tensor) if self.watched is not None else None if made is None else _again(*made)
        if op is None:
            return self._known(tensor)
        call = Call(str(op.func), op.spot.frames)
        return Birth(OP, call, str(op.func), inputs_of(op), outputs_of(op), {**scalars_of(op), **in_float64(op)})


def _again(maker: Entry, index: int) -> Op | None:
    """Make what the script computed without modules again, and return the op that made it bad of finite values.

    What it wrote into weights, say, is there already, and not written a second time: a copy stands in for each. Nothing
    of the script's own is run: the run goes on, most likely with no harm at all.
    """
    entries = sorted(ancestors([maker]), key=lambda entry: entry.number)
    if len(entries) > _MOST_CALLS or any(entry.kind != CALL for entry in entries):
        return None
    if not runs_torch_alone(entries) or _reads_before_a_write(entries):
        return None
    tracer = Tracer({}, joint=False)
    states = generators(full=True, private=private_in(entries))
    try:
        with closing(Overwritten(ends=False)) as tracer.overwritten, unwarned(Warning), torch.no_grad(), tracer:
            with tracer.still():
                instead = {id(one): one.detach().clone() for _, one in written_by(entries)}
            outputs = Player(tracer, instead, []).play(entries, phases_of(entries)).outputs.get(id(maker), [])
    except (Exception, Refused):  # what cannot be made again shows nothing
        return None
    finally:
        states.put_back()
    op = tracer.writer(outputs[index]) if index < len(outputs) else None
    found = origin([op]) if op is not None else None
    return found.op if found is not None and found.source == OP else None


def _reads_before_a_write(entries: list[Entry]) -> bool:
    """Whether one of these takes in what a later one writes into: what it held then is gone."""
    last = {id(one): entry.number for entry, one in written_by(entries)}
    reading = [entry for entry in entries if not (entry.in_place or entry.name in VIEWS)]
    read = ((entry, word.get()) for entry in reading for word in entry.words if type(word) is Given)
    return any(entry.number < last.get(id(one), -1) for entry, one in read)


def _told(key: str, path: str, call: Call, saved: Saved | None) -> Birth:
    """Return the birth of what was read from ``path`` by ``call``."""
    if saved is None:
        return Birth(FILE, call, facts={"file": path, "key": key})
    facts: dict[str, object] = {
        "file": path, "key": key, "saved_step": saved.step, "saved_at": _line(saved.call), "loaded_at": _line(call),
    }  # fmt: skip
    known = saved.bad[key]
    if known is None:
        return Birth(FILE, saved.call, facts=facts)
    return replace(known, facts={**{name: word for name, word in facts.items() if name != "key"}, **known.facts})


def name_of(file: Any) -> str:
    """Return the last part of a file's name, or what it is where it has none."""
    name = getattr(file, "name", file)
    return os.path.basename(str(name)) if isinstance(name, str | os.PathLike) else f"a {type(file).__name__}"


def _line(call: Call) -> str:
    frame = best(tuple(map(Frame._make, call.places)))
    return "" if frame is None else f"{os.path.basename(frame.file)}:{frame.line}"


def _path(file: Any) -> str:
    return os.path.abspath(file) if isinstance(file, str | os.PathLike) else ""


def _inode(file: Any) -> tuple[int, int] | None:
    """Return what tells a file from others, and a checkpoint kept in memory by what it holds."""
    if type(file) is io.BytesIO:
        with file.getbuffer() as held:
            short = held.nbytes <= _LARGEST_IN_MEMORY
            return (_IN_MEMORY, int.from_bytes(blake2b(held, digest_size=8).digest(), "big")) if short else None
    try:
        known = os.stat(file) if isinstance(file, str | os.PathLike) else os.fstat(number_of(file))
    except (OSError, AttributeError, ValueError):
        return None
    return known.st_dev, known.st_ino


def _is_called(key: str, name: str) -> bool:
    """Whether a tensor of a file, by the way to it there, may be the weight ``name`` of a model or of its part."""
    last = _key(key)
    return last == name or name.endswith(f".{last}") or last.endswith(f".{name}")


def _key(way: str) -> str:
    """Return the last key of the way to a tensor in a file."""
    return way.rpartition("['")[2].removesuffix("']")


def _holds(data: Tensor, mask: Tensor) -> bool:
    """Whether ``data`` is bad wherever the file was."""
    return data.shape == mask.shape and not bool(torch.isfinite(data)[mask.to(data.device)].any())
