"""A weight that is divided by what is made of it, and is all zeros, or zeros in some rows (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_ROWS = "for behind a small number in its place the gradient of these rows would be huge."


def of_zeros(facts: Facts) -> Suggestion | None:
    """A weight that is all zeros, divided by what is made of it: a guard makes its gradient huge instead of NaN."""
    weight, parsed = facts.origin.inputs[0], fitting.parsed(facts.origin)
    if facts.extra.get("of_weights") is False:
        return None  # a sum, or an average, that begins at zero
    if not weight.name or weight.zeros != weight.numel or weight.numel == 0 or parsed is None:
        return None
    node = parsed[1].left if isinstance(parsed[1], ast.BinOp) else None
    text = f"{weight.name} is all zeros, and has no direction: do not let it begin so."
    code = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else "weight"
    return Suggestion(text, f"torch.nn.init.normal_({code}, std=0.02)")


def rows_of(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Some rows of a weight are zeros, as pruning leaves them: behind a guard their gradient would be huge."""
    weight = facts.origin.inputs[0]
    partly = 0 < weight.zeros < weight.numel and 0 < divisor.zeros < divisor.numel
    if not (weight.name and partly and facts.outputs_nan) or facts.node is not None:
        return None
    if quotients.rooted(facts.origin, str) is not None:
        return None  # behind a root that is left as it is the gradient would still be infinite there
    code = quotients.left_out(facts.origin)
    if facts.extra.get("of_weights") is False or facts.origin.phase == "optimizer" or code is None:
        return None
    return Suggestion(f"Rows of {weight.name} are zeros. Where the divisor is 0, give 0, {_ROWS}", code)
