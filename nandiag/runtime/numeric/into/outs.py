"""What a call of one of numpy's functions writes into, by its text: ``out=buffer``, or in its place (worker)."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import lru_cache

# Methods of ufuncs: ``np.add.reduce(a, axis, dtype, out)``.
_OF_UFUNCS = {"reduce": 3, "accumulate": 3, "reduceat": 4}
# Functions and methods that write into what comes first, or into what they are methods of.
FILL_FIRST = frozenset({"copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal", "at"})
FILL_OWN = frozenset({"fill", "put", "itemset"})


def given(call: ast.Call) -> list[ast.expr]:
    """Return what a call is given to read: neither what it writes into, nor what chooses among its values."""
    words = [one.value for one in call.keywords if one.arg not in {"out", "where"}]
    return [*call.args[: place_of_out(called(call))], *words]


def outs(call: ast.Call) -> list[ast.expr]:
    """Return what a call is known to write into."""
    place = place_of_out(called(call))
    words = [one.value for one in call.keywords if one.arg == "out"]
    return [*words, *([] if place is None else call.args[place:])]


def writes(call: ast.Call) -> bool:
    """Whether the text of a call of numpy's leaves open that it writes into something that it is given."""
    many = any(isinstance(one, ast.Starred) for one in call.args) or any(word.arg is None for word in call.keywords)
    return many or bool(outs(call))


def called(call: ast.Call) -> str:
    """Return the last part of the name by which a function is called."""
    return ast.unparse(call.func).rpartition(".")[2]


@lru_cache(maxsize=256)
def place_of_out(name: str) -> int | None:
    """Return how many arguments a function of numpy's of that name takes before the one that it writes into."""
    numpy = sys.modules.get("numpy")
    function = getattr(numpy, name, None)
    if numpy is None or function is None:
        return _OF_UFUNCS.get(name)
    if isinstance(function, numpy.ufunc):
        return int(function.nin)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of what is written in C
        return None
    return names.index("out") if "out" in names else None
