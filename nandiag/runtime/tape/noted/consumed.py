"""Whether a backward has gone through all that a step's notes have made: nobody can ask for it any more (worker).

Notes are what :mod:`nandiag.runtime.tape.noted.jots` keeps of calls.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

RETAINS = id(True)  # noqa: FBT003 - among the words of a backward
# One call, as it was given: the entry of a root module's, else None; the function, and whether a gradient flows
# through it; the modes, the trail; arguments by position and by name; their versions before, and behind a root; what it
# returned (None: a backward, or a root under way); the micro-step. No class of its own: five are made in each step.
Note: TypeAlias = tuple[Any, ...]
GRAD, ARGS, KWARGS, OUTPUT = 2, 5, 6, 9


def consumed(many: Sequence[Note], *, dense: bool) -> set[int] | None:
    """Return what calls with a gradient were given, by ``id``, if a backward has left no graph of any.

    Where they are ``dense``, what is gone but for these notes has none either: the last state of a loop over time.
    """
    used: set[int] = set()
    uses = Counter(map(id, chain.from_iterable(map(words_of, many)))) if dense else None
    for note in reversed(many):
        if not note[GRAD]:
            continue
        given = [*map(id, note[ARGS])]
        if note[KWARGS]:
            given += map(id, note[KWARGS].values())
        if note[OUTPUT] is None:
            if RETAINS in given:
                return None
        elif id(note[OUTPUT]) not in used:
            if uses is None or _is_held(note, uses[id(note[OUTPUT])]):
                return None
            continue
        used.update(given)
    return used


def gives_data(note: Note) -> bool:
    """Whether what a call returned may be used in a later step: it has no graph, and is no norm of gradients."""
    return not note[GRAD] and (note[0] is None or not note[0].in_place)


def words_of(note: Note) -> Sequence[Any]:
    """Return what a call was given."""
    return (*note[ARGS], *note[KWARGS].values()) if note[KWARGS] else note[ARGS]


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
