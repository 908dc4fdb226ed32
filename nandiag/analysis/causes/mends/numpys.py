"""A line of numpy's arithmetic guarded, as numpy's words and the line's own text tell what broke (reader side)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.counts.names import is_called, is_of_steps
from nandiag.analysis.causes.mends.logarithms import chances
from nandiag.analysis.causes.mends.script import bounding, fitting, naming, parsing, quotients
from nandiag.analysis.report import Origin, Suggestion

_LOGS = ("log", "log2", "log10")
_POLES = (*((op, "1e-12") for op in _LOGS), ("sqrt", "0"), ("power", "1e-6"), ("log1p", "-0.999"))
_HUGE = "a small number in its place would make"
_LONGEST_TWICE = 60
_END_AT_0 = re.compile(r"np\.maximum\(.+, 0\)")
_NO_RATE = "The rate is 0 from here on: nothing is learned."
_BEFORE = re.compile(r"(?:^|_)(?:prev(?:ious)?|last|lag(?:ged)?|old|before|yesterday|shift(?:ed)?)(?:$|_|\d)")


def guard(facts: Facts, said: str) -> Suggestion:
    """Return the user's line of numpy guarded, where its text shows what broke."""
    if is_of_nothing(said):
        return _without_any(facts, said)
    rate = "rate_set_at" in facts.extra
    zero = _rate_of_0(facts, said) if rate else None
    if zero is not None:
        return zero
    left = _left_out(facts, said) if said.startswith("divide by zero") and not rate else None
    if left is not None:
        return left
    code = None if said.startswith("overflow") else _guarded(facts, said)
    only = facts.extra.get("heard") is True or facts.extra.get("made_once") is True
    or_ = "Guard" if code is not None else "Or guard"
    only = only or facts.extra.get("together") is True
    text = "Guard this arithmetic against such values." if only else f"{or_} this arithmetic against such a sample."
    ended = rate and code is not None and _END_AT_0.search(code) is not None
    return Suggestion(f"{text} {_NO_RATE}" if ended else text, code)


def _rate_of_0(facts: Facts, said: str) -> Suggestion | None:
    """Say that a schedule divides by a rate of 0: by 1 in its place, or next to 0, the schedule would be another.

    ``None`` where it divides by a number of steps, which there is one of.
    """
    found = fitting.parsed(facts.origin) if said.startswith(("divide by zero", "invalid")) else None
    divisor = quotients.below(facts.origin) or ""
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
        return None
    node = parsing.expression(divisor)
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or is_of_steps(facts, divisor):
        return None
    made = facts.made(divisor)
    of = "" if made is None else f" ({made.text}, line {made.line})"
    return Suggestion(_ZERO_RATE.format(f"{divisor}{of}", divisor))


_ZERO_RATE = (
    "{} is 0 there, and the schedule divides by it: what grows by factors cannot begin, or end, at 0, and any floor "
    "makes another schedule. Let {} be a rate above 0, as a hundredth of the other end, or go from one to the other by "
    "differences."
)


def _guarded(facts: Facts, said: str) -> str | None:
    rate = "rate_set_at" in facts.extra
    if rate and said.startswith("invalid") and "power" in said:  # of less than 0: behind the end of a schedule
        end = fitting.argument(facts.origin, "power", lambda text: _at_least(text, "0"))
        return end or bounding.base(facts.origin, lambda text: _at_least(text, "0"))
    for op, low in _POLES:
        least = "1e-12" if op == "sqrt" and quotients.is_divided_by(facts.origin) else low
        least = "1" if rate and (op == "power" or least == "1e-12") else least
        code = _divided_too(facts.origin, op, least)
        code = code or fitting.argument(facts.origin, op, lambda text, least=least: _at_least(text, least))  # type: ignore[misc]
        if code is not None:
            return code
    left = _with_nothing_left(facts)
    if left is not None:
        return left
    # A rate that is made of a number next to 0 would be huge: of steps, which it is made of as a rule, there is one.
    counts = rate or is_called(quotients.below(facts.origin) or "") or said.endswith("remainder")
    low = "1" if counts else "1e-6"
    share = _share_of_schedule(facts.origin) if rate else None
    if share is not None:
        return share
    divisor = quotients.divisor(facts.origin, lambda text: _at_least(text, low)) or _of_nothing(facts, said)
    return divisor or bounding.base(facts.origin, lambda text: _at_least(text, low))


def _share_of_schedule(origin: Origin) -> str | None:
    """Return ``min((step - w) / np.maximum(total - w, 1), 1.0)``: by another length it would go on beyond its end."""
    found = fitting.parsed(origin)
    node = None if found is None else found[1]
    if found is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    sides = [one for one in (node.left, node.right) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Sub)]
    if len(sides) < 2 or ast.dump(sides[0].right) != ast.dump(sides[1].right):
        return None
    share = fitting.put(found[0], node.right, lambda text: _at_least(text, "1"))
    return fitting.whole(origin, f"min({share}, 1.0)")


def _divided_too(origin: Origin, op: str, least: str) -> str | None:
    """Return the line behind one that bounds the name which ``op`` is given, where it divides in the line as well."""
    found, source = fitting.parsed(origin), (origin.source or "").strip()
    given = None if found is None else fitting.target(found[1], op)
    line = None if not isinstance(given, ast.Name) else parsing.module(source)
    if line is None or not isinstance(given, ast.Name):
        return None
    divisions = [one for one in ast.walk(line) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    if not any(isinstance(one.right, ast.Name) and one.right.id == given.id for one in divisions):
        return None
    return naming.ahead(origin, f"{given.id} = {_at_least(given.id, least)}", source, "\n")


def _with_nothing_left(facts: Facts) -> str | None:
    """Return the line with 0 for what ``np.nanmean`` and its like give where all is NaN."""
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    is_numpys = name.startswith(("np.nan", "numpy.nan")) and not name.endswith("nan_to_num")
    return (
        fitting.whole(facts.origin, f"np.nan_to_num({ast.unparse(call)})") if call is not None and is_numpys else None
    )


def is_of_nothing(said: str) -> bool:
    """Whether numpy says that it reduced too few values, or none: it divides by how many there are."""
    return said.startswith(("Mean of empty slice", "Degrees of freedom <= 0 for slice"))


def _without_any(facts: Facts, said: str) -> Suggestion:
    """Return the line with 0 for the mean, or the spread, of too few values; words where they cannot be asked twice."""
    code = _with_nothing_left(facts) or _of_nothing(facts, said)
    what = "the mean of nothing" if said.startswith("Mean") else "the spread of too few values"
    return Suggestion(f"Put a number, as 0, in the place of {what}, or leave out what is empty before this line.", code)


def _of_nothing(facts: Facts, said: str) -> str | None:
    """Return the line with 0 for the mean of an array without elements: numpy divides by their number."""
    found = fitting.parsed(facts.origin)
    given = None if found is None else next(filter(None, (fitting.target(found[1], op) for op in _REDUCED)), None)
    if found is None or given is None or not (said.startswith("invalid value") or is_of_nothing(said)):
        return None
    array, whole = ast.unparse(given), ast.unparse(found[1])
    alone = [f"{way}{end}" for op in _REDUCED for way in (f"{array}.{op}(", f"np.{op}({array}", f"numpy.{op}({array}")
             for end in (")", "ddof=1)", ", ddof=1)")]  # fmt: skip
    if whole not in alone or not naming.is_cheap(given):
        return None
    enough = f"len({array}) > 1" if "ddof=1" in whole else f"len({array})"
    kept = f"{whole} if {enough} else 0.0"
    outer = _around(facts.origin)
    held = isinstance(outer, ast.Call) and len(outer.args) == 1 and not outer.keywords  # in brackets already
    return fitting.whole(facts.origin, kept if held else f"({kept})")


_REDUCED = ("mean", "std", "var")


def _at_least(text: str, least: str) -> str:
    return f"np.maximum({fitting.unbracketed(text)}, {least})"


def _left_out(facts: Facts, said: str) -> Suggestion | None:
    """Return the line without what numpy made infinite: what is divided there is not 0, and by next to 0 it is huge.

    Of 0/0 numpy says otherwise: there a small number gives 0.
    """
    op = said.rpartition(" encountered in ")[2]
    chance = _chance(facts.origin)
    if chance is not None:
        return chance
    if "log" in op:
        return _difference(facts)
    if "power" in op:
        return _inverse_power(facts.origin)
    if "divide" not in op or is_called(quotients.below(facts.origin) or ""):
        return None
    return _ratio(facts.origin) or _quotient(facts.origin)


def _chance(origin: Origin) -> Suggestion | None:
    """Return the line with a chance kept off 0 and 1 whose logarithm, over that of what is left of it, is taken."""
    found, outer = fitting.parsed(origin), _around(origin)
    logarithms = outer is not None and (_logged(outer) is not None or isinstance(outer, ast.BinOp))
    nodes = [] if found is None else [(origin, found[1])] if _logged(found[1]) is not None or logarithms else []
    nodes += [(_at(origin, outer), outer)] if outer is not None and nodes else []
    for place, node in nodes:
        told = chances.kept(node, _logged)
        code = None if told is None else fitting.whole(place, told[1])
        if told is not None and code is not None:
            return Suggestion(f"Keep {told[0]} off 0 and 1, where the logarithm has no end.", code)
    return None


def _quotient(origin: Origin) -> Suggestion | None:
    """Return the line with 0 for the quotient where the divisor is 0."""
    found = fitting.parsed(origin)
    divided = None if found is None else quotients.divided_by(found[1])
    if divided is None:
        return None
    below = ast.unparse(divided)
    text = f"Where {below} is 0, give 0: {_HUGE} the quotient huge."
    return _suggested(text, origin, below, lambda name: quotients.divisor(origin, lambda _: _or_infinity(name)))


def _inverse_power(origin: Origin) -> Suggestion | None:
    """Return the line with 0 where what is 0 is raised to less than 0."""
    found = fitting.parsed(origin)
    power = None if found is None else found[1]
    raised = power.left if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow) else None
    raised = raised or (None if power is None else fitting.target(power, "power"))
    if raised is None:
        return None
    base, whole = ast.unparse(raised), not _FRACTION.search(ast.unparse(power) if power is not None else "")
    text = f"Where {base} is {'0' if whole else 'not above 0'}, give 0: {_HUGE} the power huge."

    def put(name: str) -> str | None:
        instead = _or_infinity(name, "!= 0" if whole else "> 0")
        return bounding.base(origin, lambda _: instead) or fitting.argument(origin, "power", lambda _: instead)

    return _suggested(text, origin, base, put)


# Of what is below 0, if by rounding alone, no power to a fraction is a number.
_FRACTION = re.compile(r"(?:\*\*|,) \(?-\d*\.0*[1-9]\d*\)?$")


def _or_infinity(text: str, sound: str = "!= 0") -> str:
    return f"np.where({text} {sound}, {text}, np.inf)"


def _suggested(text: str, origin: Origin, part: str, put: Callable[[str], str | None]) -> Suggestion | None:
    """Return the line that ``put`` makes of what stands for ``part`` there twice: a name, where it takes its time."""
    node = parsing.expression(part)
    code = None if node is None or naming.is_cheap(node) else naming.before(origin, "below", part, put("below"))
    if code is None and len(part) <= _LONGEST_TWICE:
        code = put(part)
    return None if code is None else Suggestion(text, code)


def _ratio(origin: Origin) -> Suggestion | None:
    """Return the line with 1 for a quotient that is a growth, or whose logarithm is taken: 0 is far from the others.

    In a logarithm what is 0 below may be 0 above next.
    """
    found, outer = fitting.parsed(origin), _around(origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not naming.is_cheap(node):
        return None
    above, below = ast.unparse(node.left), ast.unparse(node.right)
    grown = isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Sub) and ast.unparse(outer.right) in {"1", "1.0"}
    if grown:
        sound, told = parsing.written("{} != 0", below), "which is no growth"
    elif outer is not None and any(fitting.target(outer, op) is not None for op in _LOGS):
        sound, told = parsing.written("({} > 0) & ({} > 0)", above, below), "whose logarithm is 0"
    else:
        return None
    code = fitting.whole(origin, f"np.where({sound}, {above}, 1) / np.where({sound}, {below}, 1)")
    text = f"Where {below} is 0, give 1, {told}: {_HUGE} the quotient huge."
    return None if code is None else Suggestion(text, code)


def _are_alike(node: ast.expr, other: ast.expr) -> bool:
    """Whether two are of one kind: slices of one array, or what is called the one before; a share is of its whole."""
    names, others = ({one.id for one in ast.walk(side) if isinstance(one, ast.Name)} for side in (node, other))
    return bool((names & others) - {"np", "numpy"}) or any(_BEFORE.search(name) for name in names ^ others)


def _difference(facts: Facts) -> Suggestion | None:
    """Return the line with 0 for the differences of logarithms that one of 0 goes into: by next to 0 they are huge."""
    origin, outer = facts.origin, _around(facts.origin)
    found = fitting.parsed(origin)
    inner = None if found is None else _logged(found[1])
    if found is None or inner is None:
        return None
    text = f"Where {ast.unparse(inner)} is 0, give 0 as the difference: {_HUGE} it huge."
    if outer is not None and _is_difference(outer):
        if isinstance(outer, ast.BinOp) and not _are_alike(outer.left, outer.right):
            return None
        code = fitting.whole(_at(origin, outer), f"np.nan_to_num({_with_gaps(outer)})")
        return None if code is None else Suggestion(text, code)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and naming.is_cheap(inner):
        if not _are_alike(inner.left, inner.right):
            return None
        return _ratio(replace(origin, column=_place(origin, inner)))
    return _used(facts, text)


def _used(facts: Facts, text: str) -> Suggestion | None:
    """Return the line that names the logarithms, and the one behind it that takes their differences."""
    own, found = parsing.statement((facts.origin.source or "").strip()), fitting.parsed(facts.origin)
    alone = isinstance(own, ast.Assign) and found is not None and ast.dump(own.value) == ast.dump(found[1])
    name = own.targets[0] if alone and isinstance(own, ast.Assign) else None
    if found is None or not isinstance(name, ast.Name):
        return None
    for use in facts.uses:
        nodes = [one for one in fitting.nodes_of(use) if isinstance(one, ast.expr) and _is_difference_of(one, name.id)]
        if nodes and parsing.statement(use) is not None and use.isascii():
            first, last = nodes[0].col_offset, nodes[0].end_col_offset or 0
            behind = f"{use[:first]}np.nan_to_num({use[first:last]}){use[last:]}"
            return Suggestion(text, f"{name.id} = {_with_gaps(found[1])}\n{behind}")
    return None


def _with_gaps(node: ast.expr) -> str:
    """Return the expression with NaN in the place of what is not above 0 in each logarithm, which numpy takes."""
    return ast.unparse(_Gaps().visit(ast.parse(ast.unparse(node), mode="eval")))


class _Gaps(ast.NodeTransformer):
    """Put ``np.where(x > 0, x, np.nan)`` for the x of each logarithm."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Guard what a logarithm is taken of."""
        self.generic_visit(node)
        inner = _logged(node)
        if inner is not None and node.args:
            text = ast.unparse(inner)
            node.args[0] = ast.parse(f"np.where({fitting.bracketed(inner)} > 0, {text}, np.nan)", mode="eval").body
        return node


def _logged(node: ast.expr) -> ast.expr | None:
    """Return the x of ``np.log(x)``."""
    return next((one for op in _LOGS if (one := fitting.target(node, op)) is not None), None)


def _is_difference(node: ast.AST) -> bool:
    """Whether it is ``np.diff(np.log(x))``, or a logarithm less another."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return _logged(node.left) is not None and _logged(node.right) is not None
    given = fitting.target(node, "diff") if isinstance(node, ast.expr) else None
    return given is not None and _logged(given) is not None


def _is_difference_of(node: ast.expr, name: str) -> bool:
    """Whether it is ``np.diff(name)``, or a slice of it less another."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        sides = [one.value for one in (node.left, node.right) if isinstance(one, ast.Subscript)]
        return len(sides) == 2 and all(isinstance(one, ast.Name) and one.id == name for one in sides)
    given = fitting.target(node, "diff")
    return isinstance(given, ast.Name) and given.id == name


def _around(origin: Origin) -> ast.expr | None:
    """Return the expression of the line that the underlined one is handed to."""
    source, column = origin.source or "", origin.column or (0, 0)
    indent = len(source) - len(source.lstrip())
    place = column[0] - indent, column[1] - indent
    nodes = [node for node in fitting.nodes_of(source) if isinstance(node, ast.expr)] if source.isascii() else []
    for node in nodes:
        inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr) and one.lineno == 1]
        if any((one.col_offset, one.end_col_offset) == place for one in inner):
            return node
    return None


def _at(origin: Origin, node: ast.expr) -> Origin:
    """Return the origin with an expression of its line underlined."""
    source = origin.source or ""
    indent = len(source) - len(source.lstrip())
    return replace(origin, column=(node.col_offset + indent, (node.end_col_offset or 0) + indent))


def _place(origin: Origin, node: ast.expr) -> tuple[int, int]:
    """Return where a part of the underlined expression stands in the line."""
    first = (origin.column or (0, 0))[0]
    return first + node.col_offset, first + (node.end_col_offset or 0)
