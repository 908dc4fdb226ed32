"""What is noted of a call, and how that comes on the tape (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any
from weakref import ref as reference

from torch import Tensor

from nandiag.runtime.frames import Trail
from nandiag.runtime.tape.entry import BACKWARD, CALL, Entry
from nandiag.runtime.tape.noted.consumed import Note, held
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
    """Put what was noted on the ``tape``; nothing where what was large is gone."""
    entry, function, grad, known, where, args, kwargs, versions, after, output, _ = note
    if type(function) is Nested:
        function, args, kwargs = function
    if reference in map(type, args):
        if any(type(one) is reference and one() is None for one in args):
            return
        args = held(args)
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


def lightly(function: Any, words: Sequence[Any], tape: Tape) -> tuple[Any, Sequence[Any]] | None:
    """Return a call to be noted, what is large by weak references: a set of data, say, of which a batch is taken.

    As on the ``tape``, what is not too large is held there until the step is over, whoever lets go of it. None where
    it lies in a list, or a call has made it that is there: it may be gone by then.
    """
    large = [one for one in words if isinstance(one, Tensor) and one.numel() > LARGEST]
    if tape.knows(large):
        return None
    tape.carried.on = True
    for one in large:
        tape.carried.hold(one)
    light = list(map(_light, words))
    if type(function) is not Nested:
        return function, light
    own = tuple(map(_light, function.args))
    alone = [one for one in own if type(one) is reference]
    return (function._replace(args=own), light) if len(alone) == len(large) else None


def _light(word: Any) -> Any:
    return reference(word) if isinstance(word, Tensor) and word.numel() > LARGEST else word


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
