"""The logarithm of a sigmoid or a softmax that is made elsewhere, in the names of its own line (reader side).

What makes it is to hand back the scores: the line then takes both in one step, which a bound in its place would not.
"""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.logarithms import scores
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion

_OF_SIGMOID = ("F.logsigmoid(scores)", "F.logsigmoid(-scores)")
_OF_SOFTMAX = "F.log_softmax(scores, dim=-1)"
_ONES = ("1", "1.0")
# What is picked of the logarithms is the logarithm of what is picked.
_PICKS = frozenset({"gather", "squeeze", "flatten", "view", "reshape", "index_select", "take_along_dim"})


def back(facts: Facts, text: str, form: str) -> Suggestion:
    """Return the user's line with ``form`` in its own names; ``form`` in words where its names fit none of the line's.

    Without a line it is code, as an example.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], "log")
    if found is None or form not in (*_OF_SIGMOID, _OF_SOFTMAX):
        return Suggestion(text, form)
    own = None if part is None else _of(part)
    less = part is not None and _less(part) is not None
    if part is None or own is None or less is not (form == _OF_SIGMOID[1]):
        name = None if part is None else next((one.id for one in ast.walk(part) if isinstance(one, ast.Name)), None)
        made = "" if name is None or not (at := _made_at(facts, name)) else f" {name} is {at}."
        return Suggestion(f"{text.removesuffix('.')}, by {form}.{made}")
    kind = "softmax" if form == _OF_SOFTMAX else "sigmoid"
    spread = {ast.unparse(one): _spread(facts, one) for one in _logs(facts, found[1])}
    swapped = {text: log for text, one in spread.items() if (log := _one_step(one, form)) is not None}
    told = _told(facts, [ast.unparse(spread[text]) for text in swapped], kind)
    whole = {ast.unparse(base) for text in swapped if (base := _base(spread[text])) is not None}
    return Suggestion(told, _line(facts, found[1], swapped, {one: _shares(one, kind) for one in whole}))


def _base(log: ast.expr) -> ast.expr | None:
    """Return what is called by a name, as it hands back the scores, and is read elsewhere in the line too."""
    part = fitting.target(log, "log")
    base = None if part is None else _of(part)
    return None if isinstance(base, ast.Call) else base


def _shares(name: str, kind: str) -> str:
    """Return the probabilities of the scores that a name stands for by then."""
    return f"torch.softmax({name}, dim=-1)" if kind == "softmax" else f"torch.sigmoid({name})"


def _spread(facts: Facts, log: ast.expr) -> ast.expr:
    """Return the logarithm of what a name stands for, where that is picked of what was made: the softmax is of that."""
    part = fitting.target(log, "log")
    meaning = facts.meaning(part.id) if isinstance(part, ast.Name) else None
    picked = None if meaning is None or not meaning.inside else parsing.expression(meaning.text)
    if part is None or picked is None or not isinstance(_whole(picked), ast.Name | ast.Attribute):
        return log
    text = ast.unparse(picked)
    return ast.parse(f"torch.log({text})", mode="eval").body if _whole(picked) is not picked else log


def _whole(picked: ast.expr) -> ast.expr:
    """Return what values are picked of, by indices or by torch's methods that pick."""
    while isinstance(picked, ast.Subscript) or _picks(picked) is not None:
        picked = picked.value if isinstance(picked, ast.Subscript) else _picks(picked) or picked
    return picked


def _picks(node: ast.expr) -> ast.expr | None:
    method = node.func if isinstance(node, ast.Call) else None
    return method.value if isinstance(method, ast.Attribute) and method.attr in _PICKS else None


def _told(facts: Facts, logs: list[str], kind: str) -> str:
    """Say what is to hand back the scores, and what that asks of others."""
    given = [fitting.target(ast.parse(log, mode="eval").body, "log") for log in logs]
    bases = [base for one in given if one is not None and (base := _of(one)) is not None]
    what = f"What it is taken of is a {kind}: let"
    if isinstance(bases[0], ast.Call):
        name = ast.unparse(bases[0].func)
        return f"{what} {name} hand back the scores, wherever it is called, and take both here."
    names = list(dict.fromkeys(ast.unparse(base) for base in bases))
    made = " and ".join([f"{name} ({at})" if (at := _made_at(facts, name)) else name for name in names])
    rest = (
        f"Where else {'they are' if len(names) > 1 else 'it is'} taken for probabilities, torch.{kind} makes them so."
    )
    return f"{what} what makes {made} hand back the scores, without the {kind}, and take both in one step here. {rest}"


def _made_at(facts: Facts, name: str) -> str:
    """Say what a name stands for, and in which line; empty where it is not known."""
    meaning = facts.meaning(name)
    return "" if meaning is None else f"{meaning.text}, {posixpath.basename(meaning.file)}:{meaning.line}"


def _logs(facts: Facts, own: ast.expr) -> list[ast.expr]:
    """Return the logarithms of the line that are of the like: of the same model's, or log(p) beside log(1 - q)."""
    source = (facts.origin.source or "").strip()
    calls = [node for node in fitting.nodes_of(source) if isinstance(node, ast.Call) and source.isascii()]
    pairs = [(call, part) for call in calls if (part := fitting.target(call, "log")) is not None]
    both = len({_less(part) is None for _, part in pairs}) > 1
    mine = fitting.target(own, "log")
    called = None if mine is None else _called(mine)
    beside = [call for call, part in pairs if _called(part) == called and (both or called is not None)]
    return [own, *(one for one in beside if ast.dump(one) != ast.dump(own))]


def _called(part: ast.expr) -> str | None:
    """Return what is called to make what the logarithm is taken of; ``None`` where a name stands for it."""
    base = _of(part)
    return ast.unparse(base.func) if isinstance(base, ast.Call) else None


def _of(part: ast.expr) -> ast.expr | None:
    """Return the p of log(p), log(p[i]) and log(1 - p), where it is a name or what a model hands back."""
    base = _whole(_less(part) or part)
    if isinstance(base, ast.Call):
        return base if base.args and _is_model(base.func) else None
    return base if isinstance(base, ast.Name | ast.Attribute) else None


def _less(part: ast.expr) -> ast.expr | None:
    """Return the p of ``1 - p``."""
    less = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and ast.unparse(part.left) in _ONES
    return part.right if isinstance(part, ast.BinOp) and less else None


def _one_step(log: ast.expr, form: str) -> str | None:
    """Return the logarithm of the scores in one step."""
    part = fitting.target(log, "log")
    given = None if part is None or _of(part) is None else (_less(part) or part)
    if part is None or given is None:
        return None
    if form != _OF_SOFTMAX:
        sign = "" if given is part else "-"
        return f"torch.nn.functional.logsigmoid({sign}{ast.unparse(given)})"
    return _picked(given)


def _picked(node: ast.expr) -> str:
    """Return ``log_softmax(p, dim=-1)`` with what is picked of p picked behind it."""
    if isinstance(node, ast.Subscript):
        return fitting.picked(_picked(node.value), node.slice)
    base = _picks(node)
    if base is not None:
        return f"{_picked(base)}{ast.unparse(node)[len(ast.unparse(base)) :]}"
    return f"torch.log_softmax({ast.unparse(node)}, dim=-1)"


def _line(facts: Facts, own: ast.expr, swapped: dict[str, str], shares: dict[str, str]) -> str | None:
    """Return the user's line with each of the logarithms in one step, and ``shares`` of the scores elsewhere in it."""
    nodes = fitting.nodes_of(facts.origin.source or "")
    places: list[ast.expr] = [one for one in nodes if isinstance(one, ast.Call) and ast.unparse(one) in swapped]
    within = {id(one) for place in (*places, *_stored(nodes)) for one in ast.walk(place)}
    read = [one for one in nodes if isinstance(one, ast.Name | ast.Attribute) and id(one) not in within]
    places += [one for one in read if ast.unparse(one) in shares]
    made = {**swapped, **shares}
    beside = fitting.others(facts.origin, places, lambda text: made.get(ast.unparse(ast.parse(text)), text))
    return fitting.whole(beside, swapped[ast.unparse(own)])


def _stored(nodes: list[ast.AST]) -> list[ast.AST]:
    return [one for one in nodes if isinstance(getattr(one, "ctx", None), ast.Store)]


def _is_model(called: ast.expr) -> bool:
    """Whether it is called as a model is: by a name, or an attribute of ``self``."""
    if isinstance(called, ast.Attribute):
        return isinstance(called.value, ast.Name) and called.value.id == "self"
    return isinstance(called, ast.Name) and called.id not in {*scores.SIGMOIDS, *scores.SOFTMAX}
