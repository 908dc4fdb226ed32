"""The logarithm of a sum, or a product, of probabilities as one of logarithms, which do not vanish (reader side).

Only what gives the same numbers wherever the line itself is finite is offered, in names that mean the same there.
"""

from __future__ import annotations

import ast
import itertools
import re

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.logarithms.logarithm import Logarithm
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_OF_SUM = "It is taken of a sum of exponentials, which vanish one by one: add them as logarithms, which do not."
_OF_PRODUCT = "It is taken of a product, which may vanish though no factor does: add the logarithms of the factors{0}."
_KEPT = ", each kept from 0, where one of them did"


def of_product(facts: Facts, op: str) -> Suggestion | None:
    """Return the user's line with its ``torch.log(p.prod(-1))`` as a sum of logarithms, forward or for the gradient.

    A bound on the product itself would leave nothing of it where it is smaller than that, and it has no gradient there.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "log" else fitting.target(found[1], op)
    made = None if part is None else meanings.behind(facts, part)
    multiplied = None if made is None or not made.inside else fitting.target(made.node, "prod")
    if multiplied is None or made is None or not isinstance(made.node, ast.Call):
        return None
    given = [ast.unparse(one) for one in (*made.node.args, *made.node.keywords) if one is not multiplied]
    inputs = facts.origin.inputs
    factors = fitting.bracketed(multiplied)
    kept = any(fact.zeros for fact in (inputs if facts.node is None else inputs[1:]))
    if kept:
        # Which of both it was is not known: so small that no factor is bent by it.
        factors += f".clamp_min({'1e-7' if dtype_of(inputs[0]) == 'float16' else '1e-30'})"
    code = fitting.whole(facts.origin, f"torch.log({factors}).sum({', '.join(given)})")
    return None if code is None else Suggestion(_OF_PRODUCT.format(_KEPT if kept else ""), code)


def instead(facts: Facts, op: str) -> Suggestion | None:
    """Return the user's line with its ``torch.log((w * p).sum(-1))`` of logarithms.

    ``None`` where no exponential is summed, by the script's own text.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "log" else fitting.target(found[1], op)
    if part is None or facts.node is not None:
        return None
    made = meanings.behind(facts, part)
    if not made.inside:
        return None
    summed = forms.summed_along(made.node)
    if summed is None:
        return None
    taken = Logarithm(facts)
    text = taken.of(summed[0])
    line = fitting.whole(facts.origin, f"torch.logsumexp({text}, dim={summed[1]})")
    handed = next((one for one in taken.left if _called(facts, one) is not None), None)
    return Suggestion(_OF_SUM, line) if taken.undone and line is not None and handed is None else None


def handed_back(facts: Facts, op: str) -> Suggestion | None:
    """Say of a sum of what a function of the script's own hands back that this is to hand back its logarithm.

    The exponential is in that function: the logarithm of what it hands back is -inf again where that vanished.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "log" or facts.node is not None else fitting.target(found[1], op)
    made = None if part is None else meanings.behind(facts, part)
    summed = None if made is None or not made.inside else forms.summed_along(made.node)
    if summed is None:
        return None
    first, taken = Logarithm(facts), Logarithm(facts)
    first.of(summed[0])
    names = list(dict.fromkeys(name for one in first.left if (name := _called(facts, one)) is not None))
    taken.held = names
    text = f"torch.logsumexp({taken.of(summed[0])}, dim={summed[1]})"
    one = len(names) == 1
    told = f"let {words.few(names)} return {'its logarithm' if one else 'their logarithms'}, and take {text} here."
    return Suggestion(f"{_BETTER}: {told}") if names else None


_BETTER = "Better, for where it vanished no gradient leads back through a bound"


def _called(facts: Facts, node: ast.expr) -> str | None:
    """Return the function that ``node``, or what it stands for, calls, where that is none of torch's."""
    call = meanings.behind(facts, node).node
    if not isinstance(call, ast.Call):
        return None
    func = call.func
    own = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"
    return ast.unparse(func) if own or (isinstance(func, ast.Name) and func.id not in _PYTHONS) else None


# Python's own, and torch's as they are imported by name.
_PYTHONS = frozenset({"abs", "float", "len", "max", "min", "sum", "where", "sigmoid", "softplus", "einsum", "norm"})


_OF_RATIO = "Its logarithm is taken: take that of both sides, which is finite where the quotient is not."


def of_ratio(facts: Facts) -> Suggestion | None:
    """Return the user's line with ``torch.log(a) - torch.log(b)`` for the logarithm of the underlined ``a / b``."""
    call = _taken_of(facts, ("log",))
    given = None if call is None else fitting.target(call, "log")
    if call is None or not isinstance(given, ast.BinOp) or len(facts.origin.inputs) < 2:
        return None
    above, below = (_apart(facts, node) for node in (given.left, given.right))
    above = above if facts.origin.inputs[0].zeros else f"torch.log({ast.unparse(given.left)})"
    line, taken = (facts.origin.source or "").strip(), parsing.written("({} - {})", above, below)
    return Suggestion(_OF_RATIO, f"{line[: call.col_offset]}{taken}{line[call.end_col_offset :]}")


def is_taken(facts: Facts) -> bool:
    """Whether the logarithm of the underlined quotient is taken, in its own line or by its name behind it."""
    return _is_taken_behind(facts) or _taken_of(facts, ("log", "log2", "log10")) is not None


def _is_taken_behind(facts: Facts) -> bool:
    name = (facts.origin.source or "").partition("=")[0].strip()
    if not name.isidentifier():
        return False
    taken = re.compile(rf"\blog(?:2|10)?\({name}\b|\b{name}\.log(?:2|10)?\(")
    return any(taken.search(use) for use in facts.uses)


def _taken_of(facts: Facts, names: tuple[str, ...]) -> ast.Call | None:
    """Return the call in the user's line that takes a logarithm of the underlined ``a / b`` itself."""
    source, column = facts.origin.source or "", facts.origin.column or (0, 0)
    line = source.strip()
    first, last = (place - (len(source) - len(source.lstrip())) for place in column)
    calls = [node for node in fitting.nodes_of(line) if isinstance(node, ast.Call) and line.isascii()]
    for call, name in itertools.product(calls, names):
        given = fitting.target(call, name)
        if not isinstance(given, ast.BinOp) or not isinstance(given.op, ast.Div) or given.lineno != 1:
            continue
        if (given.col_offset, given.end_col_offset) == (first, last):
            return call
    return None


def _apart(facts: Facts, node: ast.expr) -> str:
    """Return the logarithm of one side, of the scores where it is a softmax of such, else behind a bound."""
    made = meanings.behind(facts, node)
    taken = Logarithm(facts)
    text = taken.of(made.node) if made.inside and meanings.is_same_again(made.node) else ""
    return text if taken.undone == ["softmax"] else f"torch.log({fitting.bracketed(node)}.clamp_min(1e-12))"
