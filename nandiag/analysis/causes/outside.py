"""A gradient's formula that was given what lies outside the domain of its own function (reader side).

Forward had made NaN of it already, which something hid (``nansum``, a ``where``, a mask): nothing hides it behind the
formula, which takes the same root or logarithm again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts
from nandiag.events import TensorFact

# Formulas that take one over the root of 1 - x * x, or of x * x - 1.
_OF_SQUARES = {"acos": (1.0, -1.0), "asin": (1.0, -1.0), "acosh": (1.0, 1.0)}
# Backward op -> which of its arguments is the function's own.
_GIVEN = {"erfinv": 0, "pow": 0, "log": 0, "logit_backward": 1}
_OF_ITS_OWN = {"erfinv": "erfinv", "pow": "pow", "log": "special_entr", "logit_backward": "logit"}


def as_forward(facts: Facts) -> Facts | None:
    """Return the facts as those of the forward op, with the argument that it was given; ``None`` where not known.

    Of an argument that was squared the size is known, and not the sign.
    """
    name = facts.forward_op
    if name is None or facts.node is None or not facts.finite_inputs or not facts.outputs_nan:
        return None
    given = _squared(facts, name) if name in _OF_SQUARES else _itself(facts, name)
    if given is None:
        return None
    return replace(facts, origin=replace(facts.origin, node=None, op=facts.origin.forward_op, inputs=(given,)))


def _squared(facts: Facts, name: str) -> TensorFact | None:
    given, (one, sign) = facts.origin.inputs[0], _OF_SQUARES[name]
    if facts.op != "rsqrt" or given.min is None or given.min >= 0:
        return None
    size = math.sqrt(max(one + sign * given.min, 0.0))
    low, high = (size, given.max) if sign > 0 else (0.0, size)
    return replace(given, zeros=0, absmax=None, min=low, max=high)


def _itself(facts: Facts, name: str) -> TensorFact | None:
    if _OF_ITS_OWN.get(facts.op or "") != name or len(facts.origin.inputs) <= _GIVEN[facts.op or ""]:
        return None
    return facts.origin.inputs[_GIVEN[facts.op or ""]]
