"""What a step's calls made that is still held when it ends: a list of batches, a batch made ahead, weights (worker).

What went into a call with gradients has come to the loss, where it would be seen as a rule: weights of classes, one of
which no sample has, may do no harm before a later step. All else may be used later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, strided

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import ROOT
from nandiag.runtime.tape.noted.consumed import ARGS, GRAD, KWARGS, OUTPUT, Note, gives_data, is_of_root
from nandiag.runtime.tape.packed.words import Given, Made

_MOST_ELEMENTS = 1 << 20
# Of what went into the loss: a row of no more numbers, as weights of classes are.
_SMALL = 1 << 10
_FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def lasting(tape: Tape) -> list[Tensor]:
    """Return the floats on the CPU, oldest first, that calls of this step made and that may be used in a later one.

    Not all of them where they are many.
    """
    made = _of_jots(tape.jots.every)
    made = [*_of_tape(tape), *made, *written_within(tape)] if tape._made else made
    made = [one for one in made if _is_plain(one)]
    by_roots, by_others = _taken(tape) if made else ((), ())
    left = [one for one in made if id(one) not in by_roots and (id(one) not in by_others or _is_row(one))]
    return left if sum(map(Tensor.numel, left)) <= _MOST_ELEMENTS else list(_few(left))


def _is_plain(one: Tensor) -> bool:
    plain = (
        type(one) is Tensor and not one.requires_grad and one.is_cpu and one.dtype in _FLOATS and one.layout is strided
    )
    # Memory that is not torch's own may be gone by now: `frombuffer` does not keep a mapped file open.
    return plain and one.untyped_storage().resizable()


def _is_row(one: Tensor) -> bool:
    return one.dim() <= 1 and one.numel() <= _SMALL


def _few(made: Iterable[Tensor]) -> Iterator[Tensor]:
    room = _MOST_ELEMENTS
    for one in made:
        if one.numel() <= room:
            room -= one.numel()
            yield one


def _of_tape(tape: Tape) -> list[Tensor]:
    step = tape.step
    return [
        tensor
        for one in tape._made.values()
        if one.entry.step == step and one.entry.args is not None and (not one.entry.grad or _is_kept(one))
        and (tensor := one.tensor()) is not None and one.entry.name != "__get__"
    ]  # fmt: skip


def is_of_a_forward(tape: Tape) -> bool:
    """Whether anything was made so far of what has a graph, as the last forward's outputs have: no data is."""
    noted = (word for note in tape.jots.every if not note[GRAD] for word in note[ARGS])
    entries = {id(one.entry): one.entry for one in tape._made.values() if one.entry.step == tape.step}.values()
    given = (word.get() for entry in entries if not entry.grad for word in entry.words if type(word) is Given)
    return any(isinstance(one, Tensor) and one.requires_grad and not is_leaf(one) for one in chain(noted, given))


def written_within(tape: Tape) -> list[Tensor]:
    """Return what models hold, beside weights and buffers, and write into."""
    refs = (held for entry in tape._entries if entry.inner and entry.step == tape.step for held in entry.inner)
    return [one for held in refs if (one := held()) is not None]


def _is_kept(made: Made) -> bool:
    """Whether a model keeps it, out of its output's way."""
    return made.index >= made.entry.first_side and made.entry.kind is ROOT


def _of_jots(many: Sequence[Note]) -> list[Tensor]:
    """Return what calls gave out without gradients, and somebody else than the notes themselves refers to."""
    return [one for one, references in _references(many) if references > _UNHELD]


def _references(many: Sequence[Note]) -> list[tuple[Tensor, int]]:
    """Return what calls gave out without gradients, with the references to it but for those by other calls."""
    made = [note[OUTPUT] for note in many if not note[GRAD] and gives_data(note)]
    uses = [*_given(many)] if made else []
    return [(one, sys.getrefcount(one) - uses.count(id(one))) for one in made]


def _given(many: Iterable[Note]) -> Iterable[int]:
    return map(id, chain.from_iterable([(*note[ARGS], *(note[KWARGS] or {}).values()) for note in many]))


def _taken(tape: Tape) -> tuple[set[int], set[int]]:
    """Return what went into root modules' calls with gradients of this step, and what into others."""
    return _taken_by(tape, roots=True), _taken_by(tape, roots=False)


def _taken_by(tape: Tape, *, roots: bool) -> set[int]:
    noted = _given([note for note in tape.jots.every if note[GRAD] and is_of_root(note) is roots])
    entries = (entry for entry in tape._entries if entry.grad and (entry.kind is ROOT) is roots)
    words = (word for entry in entries for word in entry.words if type(word) is Made)
    return {*noted, *(id(word.tensor()) for word in words)}


# How many there are to what nobody holds, in this Python.
_UNHELD = _references([(None, None, False, None, None, (), None, (), None, object(), 0)])[0][1]
