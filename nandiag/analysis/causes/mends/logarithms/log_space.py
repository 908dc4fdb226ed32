"""The statements from an exponential to the logarithm that is taken of what is made of it, all in logarithms (reader).

An exponential overflows, or vanishes, where its own logarithm is a number of usual size: InfoNCE, a Bradley-Terry
likelihood and the like are written with it over several lines. Each name that stands for an exponential, or for what
is made of some, then stands for its logarithm.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection
from dataclasses import dataclass, field

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.logarithms.logarithm import LEAST, Logarithm, least
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Statement, words

_ROUNDS = 5
_SUMS = ("sum", "cumsum", "mean")


def without_zeros(facts: Facts) -> Suggestion | None:
    """Return the lines in logarithms where nothing but an exponential that vanished can have made a 0 in them."""
    found = mended(facts)
    masks = found is not None and any(word in (found.code or "") for word in ("torch.log(", least(facts)))
    return None if masks or found is None or _still_stands(facts, found.code or "") else found


def _still_stands(facts: Facts, code: str) -> bool:
    """Whether the line takes the underlined logarithm still: it was another one that was written out."""
    asked = fitting.parsed(facts.origin)
    return asked is not None and ast.unparse(asked[1]) in code.partition("\n")[0]


def mended(facts: Facts) -> Suggestion | None:
    """Return the lines in logarithms, that of the origin first; ``None`` where one of them cannot be written so."""
    around = facts.around
    own = None if around is None else _own(facts, around.block)
    if around is None or own is None or facts.node is not None:
        return None
    parsed = [parsing.statement(one.text) for one in around.block]
    starts = set() if _takes(parsed[own], "log") else {own}
    for _ in range(_ROUNDS):
        rewriting = _Rewriting(parsed, starts, own, around.handed, least(facts))
        lines = rewriting.lines()
        if lines is None or not rewriting.wanted - starts:
            break
        starts |= rewriting.wanted
    if lines is None or own not in lines or not rewriting.taken or rewriting.ever & set(around.outlive):
        return None
    return _told(around.block, lines, own, sorted(rewriting.ever))


def _told(block: tuple[Statement, ...], lines: dict[int, str], own: int, held: list[str]) -> Suggestion | None:
    if any(len(text) > fitting.LONGEST_OF_LONG for text in lines.values()):
        return None
    code = [lines[own], *(f"{text}  # line {block[at].line}" for at, text in lines.items() if at != own)]
    named = f" ({words.few(held)} then {'holds' if len(held) == 1 else 'hold'} logarithms)" if held else ""
    text = f"A logarithm is taken of what is made of exponentials: let torch compute with their exponents{named}."
    return Suggestion(text, "\n".join(code))


def _own(facts: Facts, block: tuple[Statement, ...]) -> int | None:
    """Return the number of the origin's own statement."""
    if facts.around is not None and facts.around.handed is not None:
        return 0
    line = facts.origin.line or 0
    found = [number for number, one in enumerate(block) if one.line <= line]
    return found[-1] if found else None


def _takes(node: ast.AST | None, op: str) -> bool:
    parts = () if node is None else ast.walk(node)
    return any(isinstance(one, ast.Call) and fitting.target(one, op) is not None for one in parts)


def _names(node: ast.AST, context: type[ast.expr_context] = ast.Load) -> set[str]:
    """Return the names, and the attributes as they are written, that ``node`` reads, or sets."""
    found = (one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))
    return {ast.unparse(one) for one in found if isinstance(one.ctx, context)}


@dataclass
class _Rewriting:
    """One pass over the statements of a block; those of ``starts`` give their name to a logarithm.

    ``wanted`` are statements that are to be among the starts as well, for what they make is taken the logarithm of.
    ``ever`` are the names that have stood for logarithms, ``taken`` whether the logarithm of one was taken.
    """

    block: list[ast.stmt | None]
    starts: Collection[int]
    own: int
    handed: str | None = None
    least: str = LEAST
    held: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    wanted: set[int] = field(default_factory=set)
    taken: bool = False

    def lines(self) -> dict[int, str] | None:
        """Return the statements that are another then, by their number; ``None`` where one cannot be."""
        found: dict[int, str] = {}
        for number, node in enumerate(self.block):
            if node is None:
                return None
            text = self._rewritten(number, node)
            if text is None:
                return None
            if text != ast.unparse(node):
                found[number] = text
        first = min(found, default=0)
        early = {name for node in self.block[:first] if node is not None for name in _names(node)}
        return None if early & self.ever else found

    def _rewritten(self, number: int, node: ast.stmt) -> str | None:
        concerns = number in self.starts or number == self.own or bool(_names(node) & self.held)
        if not concerns:
            self.held -= _names(node, ast.Store)
            return ast.unparse(node)
        if not isinstance(node, ast.Assign | ast.Return | ast.Expr) or node.value is None:
            return None if _names(node) & self.held else ast.unparse(node)
        hands_back = number == 0 and self.handed is not None and isinstance(node, ast.Return)
        name = self.handed if hands_back else _target(node)
        plain = self._as_number(number, node)
        if plain is not None:
            self.held -= _names(node, ast.Store)
            return plain
        text = None if name is None else self.logarithm(node.value, number)
        if name is None or text is None:
            return None
        self.held.add(name)
        self.ever.add(name)
        return f"return {fitting.unbracketed(text)}" if hands_back else f"{name} = {fitting.unbracketed(text)}"

    def _as_number(self, number: int, node: ast.Assign | ast.Return | ast.Expr) -> str | None:
        """Return the statement with each logarithm of what is held, or of exponentials, written out."""
        inside = _Taken(self, number)
        changed = inside.visit(copy.deepcopy(node))
        if self._is_left(inside.rest, number, taken=inside.found):
            return None
        self.taken = self.taken or inside.found
        return ast.unparse(ast.fix_missing_locations(changed))

    def _is_left(self, rest: ast.AST, number: int, *, taken: bool) -> bool:
        return bool(_names(rest) & self.held) or (number in self.starts and (_takes(rest, "exp") or not taken))

    def logarithm(self, node: ast.expr, number: int) -> str | None:
        """Return the logarithm of an expression; ``None`` where no exponential, or not all of them, are undone."""
        taken = Logarithm(None, self.held, summed=self._is_summed_behind(number), least=self.least)
        text = taken.of(node)
        for one in taken.left:
            if _names(one) & self.held or _takes(one, "exp"):
                return None
            self.wanted |= {
                made for name in _names(one) if (made := self._made_of_exponentials(name, number)) is not None
            }
        return text if taken.undone or self.wanted else None

    def _is_summed_behind(self, number: int) -> bool:
        """Whether what the statement gives a name is summed in one behind it."""
        node = self.block[number]
        name = _target(node) if node is not None else None
        behind = [part for one in self.block[number + 1 :] if one is not None for part in ast.walk(one)]
        calls = [one for one in behind if isinstance(one, ast.Call)]
        summed = [given for one in calls for op in _SUMS if (given := fitting.target(one, op)) is not None]
        return any(name in _names(one) and not _takes(one, "log") for one in summed)

    def _made_of_exponentials(self, name: str, before: int) -> int | None:
        """Return the statement ahead that gives ``name`` an exponential, or what is made of one."""
        for number in range(before - 1, -1, -1):
            node = self.block[number]
            if isinstance(node, ast.Assign) and _target(node) == name:
                made = _takes(node, "exp") or any(
                    self._made_of_exponentials(one, number) is not None for one in _names(node.value)
                )
                return number if made else None
        return None


def _target(node: ast.stmt) -> str | None:
    one = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return one.id if isinstance(one, ast.Name) else None


class _Taken(ast.NodeTransformer):
    """Puts the logarithm of what is held in the place of each ``log`` of it; ``found``: there was one.

    ``rest`` is a module of the expressions that it went through without, each with what it is made of left out.
    """

    def __init__(self, of: _Rewriting, number: int) -> None:
        self.found = False
        self.rest = ast.Module([], [])
        self._of, self._number = of, number

    def visit_Name(self, node: ast.Name) -> ast.AST:
        self.rest.body.append(ast.Expr(node))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.rest.body.append(ast.Expr(ast.Name(ast.unparse(node), ast.Load())))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        given = fitting.target(node, "log")
        text = None if given is None else self._of.logarithm(given, self._number)
        if text is not None:
            self.found = True
            return ast.parse(text, mode="eval").body
        if fitting.target(node, "exp") is not None:
            self.rest.body.append(ast.Expr(node))
        return self.generic_visit(node)
