"""The small numbers that keep a divisor or an argument away from zero, below what was seen of it (reader side).

A guard that is larger than honest values takes their place as well: nothing would be bad any more, and all of it wrong.
"""

from __future__ import annotations

import math

from nandiag.analysis.causes.facts import dtype_of
from nandiag.events import TensorFact

# Powers of ten: further below there is no honest value, and one over it is next to what the dtype holds.
_FLOOR, _FLOOR_OF_DIVISORS = -37, -30
# What is a million times as large as its guard is not bent by it, but for its own tail.
_FAR = 1e-6
_BELOW = 2
_USUAL, _SQUARES = "1e-6", "1e-30"


def small(fact: TensorFact) -> str:
    """Return a guard of a divisor: small for the dtype of ``fact``, and not itself rounded to zero in it.

    It is below the least that is divided by elsewhere. Whole numbers are counts: at least one.
    """
    if "int" in dtype_of(fact):
        return "1"
    return "1e-4" if dtype_of(fact) == "float16" else _below(fact.absmin, _USUAL, _FLOOR_OF_DIVISORS)


def in_update(fact: TensorFact) -> str:
    """Return a guard of what an update divides by: honest means of squares of gradients are far below the usual one."""
    guard = small(fact)
    return _SQUARES if guard == _USUAL and fact.zeros == fact.numel else guard


def least(fact: TensorFact, usual: str = "1e-12") -> str:
    """Return a guard of what a logarithm or a root is taken of: the usual one, but where all that was seen is tiny.

    Whole numbers are counts: at least one.
    """
    if "int" in dtype_of(fact):
        return "1"
    if fact.absmax is None or fact.absmax * _FAR >= float(usual) or dtype_of(fact) == "float16":
        return usual
    return _below(fact.absmin, usual, _FLOOR)


def under_root(root: TensorFact) -> int:
    """Return the power of ten, an even one, of a guard of what stands under a root of which ``root`` came."""
    if dtype_of(root) == "float16":
        return -6
    half = math.floor(math.log10(root.absmin)) - 1 if root.absmin else 0
    return max(2 * min(half, -6), _FLOOR + 1)


def _below(seen: float | None, usual: str, floor: int) -> str:
    """Return ``usual``, or a hundredth of the least that was ``seen``, in whole powers of ten."""
    if not seen or seen >= 10 * float(usual):
        return usual
    return f"1e{max(math.floor(math.log10(seen)) - _BELOW, floor)}"
