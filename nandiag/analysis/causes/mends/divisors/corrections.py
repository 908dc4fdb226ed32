"""The bias correction 1 - beta ** t of an average that began at zero, where it is 0 itself (reader side)."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from dataclasses import replace

from nandiag.analysis.causes.facts import NEAR_ONE, Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import words

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
        return in_line(facts) or (_of_product(facts, text) if infinite else None)
    endless = of_one(facts) if not isinstance(power.left, ast.Constant) else None
    endless = endless or _rounded(facts, text, power)
    if endless is not None:
        return endless
    count = ast.unparse(power.right)
    if not infinite:
        return _or_rounded(facts, power, _nothing_averaged(facts, f"{text} is 0 while {count} is 0", count))
    made = [f"{one} = {_later(told)}" for one, told in {name: text, **_beside(facts)}.items()]
    code = "; ".join(made) if name != text else _all_later(facts)
    why = f"{text} is 0 while {count} is 0: let it count from 1 on, here and wherever else it corrects."
    told = Suggestion(why if restored(facts) is None else f"Where nothing was loaded: {why}", code)
    return _or_rounded(facts, power, told)


def _rounded(facts: Facts, text: str, power: ast.BinOp) -> Suggestion | None:
    """Say that half precision makes 0 of a correction; ``None`` where its count is 0, or may be without that."""
    beta, count = _number(facts, power.left), _number(facts, power.right)
    if beta is None or not _may_round(facts, power):
        return None
    own, dtype, one = ast.unparse(power.left), _dtype(facts), ast.unparse(power)
    keep = f"eep {own}, the average and its correction in float32"
    if count is not None:
        return Suggestion(f"{text} is 0 in {dtype}, which rounds {one} to 1: k{keep}.")
    name = ast.unparse(_counted(power.right))
    what = f"{text} is 0 where {name} is 0, and in {dtype} where it is small, too, which rounds {one} to 1"
    return Suggestion(f"{what}. K{keep}, and let {name} count from 1 on.")


def _or_rounded(facts: Facts, power: ast.BinOp, told: Suggestion) -> Suggestion:
    """Return the advice against a count of 0, with what else it may be of a beta that is not known."""
    if not _may_round(facts, power):
        return told
    own, dtype = ast.unparse(power.left), _dtype(facts)
    what = f"Where {ast.unparse(_counted(power.right))} is not 0, {dtype} has rounded {ast.unparse(power)} to 1"
    return replace(told, text=f"{told.text} {what}: keep {own}, the average and its correction in float32.")


def _may_round(facts: Facts, power: ast.BinOp) -> bool:
    """Whether the divisor's dtype may round ``beta ** t`` to 1: of the first update, where it is not known of which."""
    near, beta, count = NEAR_ONE.get(_dtype(facts)), _number(facts, power.left), _number(facts, power.right)
    if near is None or (count is not None and count <= 0):
        return False
    return beta is None or (0 < beta <= 1 and 1 - beta ** (1 if count is None else count) <= near)


def _dtype(facts: Facts) -> str:
    return facts.origin.inputs[1].dtype if len(facts.origin.inputs) > 1 else ""


def _number(facts: Facts, node: ast.expr) -> float | None:
    """Return the number that is written there, or that a name stands for by the script's text."""
    node = _counted(node)
    if isinstance(node, ast.Name | ast.Attribute):
        own, name = facts.extra.get("numbers"), ast.unparse(node)
        if isinstance(own, dict) and name in own:
            return words.as_number(own[name])
        node = parsing.expression(facts.kind(name)) or node
    value = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, int | float) else None


def _of_product(facts: Facts, text: str) -> Suggestion | None:
    """Say what a correction ``1 - prod`` stands for that is 0 below an average which is not: a floor is no mend.

    Nothing was counted yet, or what stands for the decays so far is no product of them.
    """
    node = parsing.expression(text.strip())
    rest = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else None
    known = isinstance(node, ast.BinOp) and ast.unparse(node.left) in _ONES
    if not known or not isinstance(rest, ast.Name | ast.Attribute) or not _DECAYS.search(ast.unparse(rest)):
        return None
    name = ast.unparse(rest)
    lines = facts.written(name)
    where = f", set in {words.lines(lines)}," if lines else ""
    why = (
        f"{text} is 0, for {name}{where} is 1, and what it divides is not 0: by a small number in its place that would "
        f"be huge. If it corrects an average that began at zero, {name} is the product of the decays of all updates so "
        "far: multiply it by each, keep them below 1, and leave the average alone until one was made."
    )
    return Suggestion(why, facts.left_if(f"{name} == 1"))


def below_zero(facts: Facts, op: str) -> Suggestion | None:
    """Say what makes the correction negative by which all that goes into the underlined root was divided.

    1 - beta ** t is below 0 for a t below 0, and no bound on the quotient makes that a second moment.
    """
    made, given = meanings.into(facts, op), facts.origin.inputs[0]
    if made is None or (given.max or 0.0) > 0.0 or not (given.min or 0.0) < 0.0:
        return None
    node = made.node.right if isinstance(made.node, ast.BinOp) and isinstance(made.node.op, ast.Div) else made.node
    text = facts.kind(ast.unparse(node)) or ast.unparse(node)
    power = _power(text)
    if power is None:
        return None
    beta, count = ast.unparse(_counted(power.left)), ast.unparse(_counted(power.right))
    where = "this line" if made.meaning is None else f"line {made.meaning.line}"
    known = facts.made(count)
    at = "" if known is None else f", in line {known.line}, where it is {known.text}"
    why = (
        f"{where[0].upper()}{where[1:]} corrects by {text}, which is below 0: so it is where {count} is, or {beta} is "
        f"above 1. Let {count} count the updates of what is averaged, from 1 on: look at how it is made{at}."
    )
    return Suggestion(why, f"{parsing.written('assert {} >= 1', count)}  # before {where}")


_DECAYS = re.compile(r"(?:prod|decays?|betas?|b[12]?|gamma|rho|mu|momentum|alpha|corr\w*|bias\w*)\d?(?:_\w+)?$")


def not_begun(facts: Facts) -> Suggestion | None:
    """Say that an average was never updated where 0 is divided by its correction: a bound would hand on zeros."""
    name = quotients.below(facts.origin) or ""
    meaning = facts.meaning(name)
    known = _power(meaning.text if meaning is not None else name) is not None
    return (
        mended(facts, infinite=False) if known and not any(one.bad > one.nan for one in facts.origin.outputs) else None
    )


def restored(facts: Facts) -> Suggestion | None:
    """Say to look at the line by which the count came out of a state that was loaded; None where there is none.

    Averages that are corrected as if they were new are far too large: to count one later hides what was lost.
    """
    power = _power(quotients.below(facts.origin) or "")
    known = facts.around.restored if facts.around is not None else ()
    if power is None or not known or of_one(facts) is not None:
        return None
    count = ast.unparse(_counted(power.right))
    made = next((one for one in known if one.name in {count, facts.kind(count)}), None)
    if made is None:
        return None
    where = f"{posixpath.basename(made.file)}:{made.line}"
    text = f"{count} is 0, and it comes out of a state that is loaded, at {where}, as {made.text}: look there first."
    default = _default(made.text)
    if default is None:
        return Suggestion(f"{text} Averages that were loaded need the count that they were saved with.")
    asked, key, given = default
    return Suggestion(
        f"{text} It is {given} where what was saved holds no {key}: look by which name it was saved, and take it "
        "without a default, so that a state without it raises.",
        f"{asked}[{key}]  # in the place of {asked}.get({key}, {given}), line {made.line}",
    )


def _default(text: str) -> tuple[str, str, str] | None:
    """Return what is asked in ``s.get("step", 0)``, for which key, and the default, where that is 0."""
    node = parsing.expression(text)
    while isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    asked = None if node is None else fitting.target(node, "get")
    if asked is None or not isinstance(node, ast.Call) or len(node.args) != 2:
        return None
    key, given = (ast.unparse(one) for one in node.args)
    return (fitting.bracketed(asked), key, given) if given in {"0", "0.0"} else None


def in_line(facts: Facts) -> Suggestion | None:
    """Return the line itself with its corrections kept from 0, where what made them may have run long before.

    The first update has 1 - beta for 1 - beta ** t: that of a count of 0 is taken for it.
    """
    name = quotients.below(facts.origin) or ""
    text = facts.kind(name) if facts.meaning(name) is None else ""
    power = _power(text)
    if power is None or not _is_plain(power.left):
        return None
    if (rounded := _rounded(facts, text, power)) is not None:
        return rounded
    count, others = ast.unparse(_counted(power.right)), _beside(facts)
    also = f", and so {'are' if len(others) > 1 else 'is'} {words.few(list(others))}" if others else ""
    what = f"{name} is {text}, which is 0 while {count} is 0{also}"
    if not facts.in_update and not any(one.bad > one.nan for one in facts.origin.outputs):
        return _or_rounded(facts, power, _nothing_averaged(facts, what, count))
    why = (
        f"{what}: raise {count} before this line, and save and load it with the averages that are corrected by it. "
        f"While {count} is 0, the line below takes the correction for 1."
    )
    return _or_rounded(facts, power, Suggestion(why, _put(facts, lambda node, shown: _first(facts, node, shown))))


def _nothing_averaged(facts: Facts, what: str, count: str) -> Suggestion:
    """Say what to do where 0 is divided by a correction of 0."""
    leave = facts.left_if(f"{count} == 0")
    instead = "." if leave is None else ", or leave the function without reading it."
    why = f"{what}: nothing was averaged yet. Update the average before it is read or saved"
    return Suggestion(f"{why}, or take what it is to be the average of until then{instead}", leave)


def _beside(facts: Facts) -> dict[str, str]:
    """Return the other names that the line divides by and that are such corrections, with what made them."""
    own, nodes = quotients.below(facts.origin), fitting.nodes_of((facts.origin.source or "").strip())
    below = [one.right for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    names = dict.fromkeys(one.id for one in below if isinstance(one, ast.Name) and one.id != own)
    return {name: facts.kind(name) for name in names if _power(facts.kind(name)) is not None}


def _first(facts: Facts, node: ast.expr, shown: str) -> str | None:
    """Return a correction with that of the first update in the place of 0."""
    power = _power(facts.kind(shown)) if isinstance(node, ast.Name) else None
    if power is None or not _is_plain(power.left):
        return None
    first = parsing.written("1 - {}", power.left)
    number = facts.number("arg1") is not None
    return (
        parsing.written("({} or {})", shown, first)
        if number
        else parsing.written("torch.where({} == 0, {}, {})", shown, first, shown)
    )


def _all_later(facts: Facts) -> str | None:
    """Return the line with each correction that it divides by counting from one later on."""
    line = _put(facts, lambda _, shown: _later(shown) if _power(shown) is not None else None)
    return line or quotients.divisor(facts.origin, _later)


def _put(facts: Facts, form: Callable[[ast.expr, str], str | None]) -> str | None:
    """Return the line with ``form`` of each divisor in its place; ``None`` where there is none."""
    line = text = (facts.origin.source or "").strip()
    nodes = fitting.nodes_of(line) if line.isascii() else []
    below = [one.right for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    for node in sorted(below, key=lambda one: -one.col_offset):
        new = form(node, line[node.col_offset : node.end_col_offset])
        text = text if new is None else text[: node.col_offset] + new + text[node.end_col_offset or 0 :]
    return text if text != line else None


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Name | ast.Attribute)


def _counted(node: ast.expr) -> ast.expr:
    """Return the count itself where it is made a tensor, or a float, of."""
    while isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) in _MADE:
        node = node.args[0]
    return node


_MADE = frozenset({"float", "int", "torch.tensor", "torch.as_tensor"})


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
    node = _counted(node)
    node = fitting.target(node, "sqrt") or node
    node = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) else node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or ast.unparse(node.left) not in _ONES:
        return None
    power = node.right
    return power if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow) else None
