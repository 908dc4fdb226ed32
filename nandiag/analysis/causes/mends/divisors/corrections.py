"""The bias correction 1 - beta ** t of an average that began at zero, where it is 0 itself (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
from nandiag.analysis.report import Suggestion

_ONES = ("1", "1.0")
_SAFE = 0.999


def mended(facts: Facts, *, infinite: bool) -> Suggestion | None:
    """Say how to mend the underlined division by such a correction; ``None`` where the divisor is none.

    It is 0 for one of two reasons: of no updates yet there is nothing to correct, and with a beta of 1 there never is.
    """
    name = quotients.below(facts.origin) or ""
    meaning = facts.meaning(name)
    text = meaning.text if meaning is not None else name
    power = _power(text)
    if power is None:
        return None
    endless = of_one(facts) if not isinstance(power.left, ast.Constant) else None
    if endless is not None:
        return endless
    count = ast.unparse(power.right)
    if not infinite:
        leave = facts.left_if(f"{count} == 0")
        instead = "." if leave is None else ", or leave the function without reading it."
        why = f"{text} is 0 while {count} is: nothing was averaged yet. Update the average before it is read{instead}"
        return Suggestion(why, leave)
    code = f"{name} = {_later(text)}" if name != text else quotients.divisor(facts.origin, _later)
    why = f"{text} is 0 while {count} is: let it count from 1 on, here and wherever else it corrects."
    return Suggestion(why, code)


def of_one(facts: Facts) -> Suggestion | None:
    """Say which beta of the optimizer's is 1, where its settings are known and one is."""
    settings = facts.extra.get("settings")
    betas = settings.get("betas") if isinstance(settings, dict) else None
    if not isinstance(betas, list) or not any(beta == 1 for beta in betas):
        return None
    which = " and ".join(f"beta{number}" for number, beta in enumerate(betas, 1) if beta == 1)
    text = f"{which} is 1: such an average takes in nothing, and its bias correction is 0. Take a number below 1."
    mended = ", ".join(str(_SAFE if beta == 1 else beta) for beta in betas)
    return Suggestion(text, f"betas=({mended})")


def _later(text: str) -> str:
    """Return the correction with its count one later."""
    power = _power(text)
    if power is None or not text.isascii():
        return text
    count, end = power.right, power.right.end_col_offset or 0
    return f"{text[: count.col_offset]}({text[count.col_offset : end]} + 1){text[end:]}"


def _power(text: str) -> ast.BinOp | None:
    """Return the beta ** t of ``1 - beta ** t``, or of the root of that."""
    node = parsing.expression(text.strip())
    if node is None:
        return None
    node = fitting.target(node, "sqrt") or node
    node = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or ast.unparse(node.left) not in _ONES:
        return None
    power = node.right
    return power if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow) else None
