"""What is noted of a call, and how that comes on the tape (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nandiag.runtime.frames import Trail
from nandiag.runtime.tape.entry import BACKWARD, CALL, Entry
from nandiag.runtime.tape.noted.consumed import Note
from nandiag.runtime.tape.packed.nested import FLAT, Nested
from nandiag.runtime.tape.packed.words import HANDS_ON, is_handed_on
from nandiag.runtime.tape.state import Generators, plain_modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

# Elements of a tensor that may be held until the step ends, and of one that is held by the hundred.
LARGEST, SMALL = 1 << 16, 1 << 10
VERSION, NONE = repeat("_version"), repeat(None)

Versions = Sequence[int | None]


def put(tape: Tape, note: Note) -> None:
    """Put what was noted on the ``tape``."""
    entry, function, grad, known, where, args, kwargs, versions, after, output, _ = note
    if type(function) is Nested:
        function, args, kwargs = function
    if entry is None:
        known = plain_modes(grad=known) if type(known) is bool else known
        entry = Entry(BACKWARD if output is None else CALL, function, grad=grad, modes=known)
        entry.trail = where
    tape.add(entry, args, kwargs)
    used = [
        (one, end) for one, end in zip(versions, after or versions, strict=True) if one is not None and end is not None
    ]
    for word, (version, end) in zip(entry.words, used, strict=True):
        word.used(version, end)
    handed_on = getattr(function, "__name__", None) in HANDS_ON and is_handed_on(output, args)
    if output is not None and not handed_on:
        tape.made(entry, (output,))


def drawn(entry: Entry, where: Trail, generators: Generators) -> Entry:
    """Return the ``entry`` of a call that drew from generators, which were so before it."""
    entry.trail, entry.generators = where, generators
    return entry


def is_small(words: Sequence[Any], output: Tensor) -> bool:
    """Whether a call was given, and has made, a few numbers only."""
    return output.numel() <= SMALL and all(one.numel() <= SMALL for one in words if isinstance(one, Tensor))


def moderate(call: tuple[Nested, list[Any]] | None) -> tuple[Nested, list[Any]] | None:
    """Return a call with its words; None where it would hold what is large."""
    return call if call is not None and are_moderate(call[1]) else None


def are_moderate(words: Sequence[Any]) -> bool:
    """Whether none of the tensors among ``words`` is large."""
    return all(one.numel() <= LARGEST for one in words if isinstance(one, Tensor))


def versions_of(args: Sequence[Any], kwargs: Any) -> Versions | None:
    """Return the version of each of a call's flat arguments, None for one that is no tensor.

    None at all where an argument may be changed behind one's back. Without a loop here, for every call comes by.
    """
    words = (*args, *kwargs.values()) if kwargs else args
    return versions_in(words) if FLAT.issuperset(map(type, words)) else None


def versions_in(words: Sequence[Any]) -> Versions | None:
    """Return the same, of words in line; None for tensors made for inference, which have no versions."""
    try:
        return list(map(getattr, words, VERSION, NONE))
    except RuntimeError:
        return None
