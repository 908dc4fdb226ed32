"""Which op made an autograd node, and where: a backward is told by that (worker)."""

from __future__ import annotations

import re
from itertools import islice
from threading import get_ident as _ident
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from nandiag.runtime.names import node_name

P = TypeVar("P")

_END = re.compile(r"(?:Backward\d*)$")
_newest_number = torch._C._autograd._get_sequence_nr


class Maker(NamedTuple, Generic[P]):
    """The place of the op that made a node, and its name; ``twice``: a backward made it, whose own place this is."""

    place: P
    op: str | None
    twice: bool = False


class Nodes(Generic[P]):
    """Nodes by their numbers.

    Each thread counts its own: on a device the nodes of a gradient that has one itself (``create_graph=True``) are made
    in the engine's thread, and have numbers that nodes of the forward have too. A node does not tell its thread. It has
    the name of its op, and where that leaves more than one, which it was is not known.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Maker[P]] = {}  # by number and thread
        self._threads: list[int] = []

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    def newest(self) -> tuple[int, int]:
        """Return the key of the node that this thread has made last."""
        return _newest_number() - 1, _ident()

    def add(self, key: tuple[int, int], maker: Maker[P]) -> None:
        """A node was made by ``maker``."""
        if key[1] not in self._threads:
            self._threads.append(key[1])
        self._known[key] = maker

    def begun(self, maker: Maker[P]) -> None:
        """``maker`` runs: it made the newest node, but where an op before it did."""
        key = self.newest()
        if key not in self._known:
            self.add(key, maker)

    def maker(self, node: Any) -> Maker[P] | None:
        """Return who made a node, None where that is not known."""
        number = node._sequence_nr()
        found = [one for thread in self._threads if (one := self._known.get((number, thread))) is not None]
        if len(found) > 1:
            name = _bare(_END.sub("", node_name(node)))
            found = [one for one in found if one.op is not None and _of_op(one.op) == name]
        return found[0] if len(found) == 1 else None

    def forget(self, most: int) -> None:
        """Keep the newer half where there are more than so many."""
        if len(self._known) > most:
            self._known = dict(islice(self._known.items(), most // 2, None))


def _of_op(op: str) -> str:
    """Return the name that nodes have of an op like ``aten.add_.Tensor``."""
    name = op.split(".")[1] if "." in op else op
    return _bare(name).removesuffix("forward")


def _bare(name: str) -> str:
    return name.replace("_", "").lower()
