"""Whether a backward has gone through all that a step's notes have made: nobody can ask for it any more (worker).

Notes are what :mod:`nandiag.runtime.tape.noted.jots` keeps of calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias
from weakref import ref as reference

import torch
from torch import Tensor

from nandiag.runtime.tape.entry import ROOT
from nandiag.runtime.tape.packed.words import base_of

RETAINS = id(True)  # noqa: FBT003 - among the words of a backward
# One call, as it was given: the entry of a root module's, else None; the function, and whether a gradient flows
# through it; the modes, the trail; arguments by position (weakly what is large) and by name; their versions before, and
# behind a root; what it returned (None: a backward, or a root under way); the micro-step. No class of its own: five
# are made in each step.
Note: TypeAlias = tuple[Any, ...]
GRAD, ARGS, KWARGS, OUTPUT = 2, 5, 6, 9


def consumed(many: Sequence[Note]) -> tuple[set[int], list[Note]] | None:
    """Return what calls with a gradient were given that a backward went through, by ``id``, and what leads to the rest.

    Of that, what nobody has but these notes has no graph either: the last state of a loop over time, or what was only
    made to be told; nor has what came of a graph that is gone. None where not the rest alone can be kept.
    """
    used: set[int] = set()
    living: list[Note] = []
    uses: Counter[int] | None = None
    for note in reversed(many):
        output = note[OUTPUT]
        if not note[GRAD]:
            continue
        if output is not None and id(output) not in used:
            uses = uses or Counter(map(id, chain.from_iterable(map(words_of, many))))
            if _is_held(note, uses[id(output)]):
                living.append(note)
            continue
        given = {*map(id, words_of(note))}
        if output is None and RETAINS in given:
            return None
        used |= given
    kept = _leading_to(living, many, used) if living else []
    words = {id(base_of(word)) for note in kept for word in words_of(note) if isinstance(word, Tensor)}
    written = {id(base_of(note[OUTPUT])) for note in many if is_write(note)} if kept else set()
    return None if words & written else (used, kept)


def _leading_to(living: Sequence[Note], many: Sequence[Note], used: set[int]) -> list[Note]:
    """Return, of ``many``, what leads to those ``living``, but for those that came of what was ``used``."""
    spent = used & {id(note[OUTPUT]) for note in many if note[GRAD]}
    for note in many:
        if note[GRAD] and not spent.isdisjoint(map(id, words_of(note))):
            spent.add(id(note[OUTPUT]))
    wanted = {id(note[OUTPUT]) for note in living} - spent
    kept: list[Note] = []
    for note in reversed(many):
        if note[OUTPUT] is not None and id(note[OUTPUT]) in wanted:
            kept.append(note)
            wanted.update(one for one in map(id, words_of(note)) if one not in spent)
    return kept[::-1]


def gives_data(note: Note) -> bool:
    """Whether what a call returned may be used in a later step: it has no graph, and is no norm of gradients."""
    return not note[GRAD] and (note[0] is None or not note[0].in_place or is_write(note))


def is_write(note: Note) -> bool:
    """Whether a call wrote into its first word, and returned it."""
    return note[0] is not None and note[0].in_place and note[OUTPUT] is note[ARGS][0]


def is_of_root(note: Note) -> bool:
    """Whether it is the call of a root module."""
    return note[0] is not None and note[0].kind == ROOT


def words_of(note: Note) -> Sequence[Any]:
    """Return what a call was given."""
    words = (*note[ARGS], *note[KWARGS].values()) if note[KWARGS] else note[ARGS]
    return held(words) if reference in map(type, words) else words


def held(words: Sequence[Any]) -> Sequence[Any]:
    """Return ``words`` with what weak references among them refer to, None for what is gone."""
    return [one() if type(one) is reference else one for one in words]


def _references(note: Note) -> int:
    return sys.getrefcount(note[OUTPUT])


def _is_held(note: Note, uses: int) -> bool:
    """Whether anything refers to what a call made but the notes, and the graph of those that were given it."""
    by_graph = _BY_GRAPH if _use_count(note[OUTPUT]) > 1 else 0
    return _references(note) - uses - by_graph > _ALONE


# Where this torch does not tell, a graph adds no references either.
_use_count: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda _: 1)


def _by_graph() -> int:
    """Return how many references a graph adds, in this torch, by what it saves of a tensor."""
    made = torch.ones((), requires_grad=True) * 2
    before = sys.getrefcount(made)
    graph = made * made
    return sys.getrefcount(made) - before if graph.requires_grad else 0


# How many there are, in this Python, to what nothing but a note refers to.
_ALONE = _references((None,) * OUTPUT + (object(),))
_BY_GRAPH = _by_graph()
