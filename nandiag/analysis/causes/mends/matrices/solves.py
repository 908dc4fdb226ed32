"""The matrix of a solve: it does not stand first in all of them, and may be a factor that another line made.

What is added to the diagonal of a factor mends nothing: it belongs into the line that factorises. Reader side.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, naming, parsing
from nandiag.analysis.report import Suggestion

# In the others the matrix, or its factor, is given first.
_SECOND = frozenset({"cholesky_solve", "triangular_solve", "lu_solve"})
_OF_FACTORS = frozenset({"cholesky_solve", "cholesky_inverse", "lu_solve", "ldl_solve"})
_TRIANGULAR = frozenset({"solve_triangular", "triangular_solve"})
_FACTORISE = frozenset({"cholesky", "cholesky_ex", "lu_factor", "lu_factor_ex", "ldl_factor", "ldl_factor_ex", "lu"})
_SCALES = ("{0}.diagonal().abs().mean()", "{0}.diagonal(dim1=-2, dim2=-1).abs().mean(-1)[..., None, None]")
_EYE = "torch.eye({0}.shape[-1], dtype={0}.dtype, device={0}.device)"
_MATRIX, _PAIR = "matrix", 2


@dataclass(frozen=True, slots=True)
class Factor:
    """What a solve is given for its matrix: ``name``, and where the text shows it the ``line`` that factorises."""

    name: str
    line: int | None
    text: str
    call: ast.Call | None

    @property
    def of(self) -> str:
        """What is called there: ``cholesky_ex``; empty where it is not known."""
        return "" if self.call is None else ast.unparse(self.call.func).rpartition(".")[2]

    @property
    def unchecked(self) -> bool:
        """Whether it says in another output alone that there is none, and raises nothing."""
        return self.of.endswith("_ex")


def given(facts: Facts, op: str) -> ast.expr | None:
    """Return what the underlined call of ``op`` is given for its matrix, or for the factor of that."""
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    first = None if call is None else fitting.target(call, op)
    if first is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute | ast.Name):
        return None
    values = [first, *(one for one in call.args if one is not first)]
    place = _place(call, op)
    return values[place] if len(values) > place and not isinstance(values[place], ast.Starred) else None


def _place(call: ast.Call, op: str) -> int:
    """Return where the matrix stands: the two functions called ``lu_solve`` differ."""
    newer = op == "lu_solve" and ast.unparse(call.func).endswith("linalg.lu_solve")
    return 1 if op in _SECOND and not newer else 0


def factor(facts: Facts, op: str) -> Factor | None:
    """Return the factor that a solve is given; ``None`` where it is given a matrix itself."""
    node = given(facts, op)
    if node is None or op not in _OF_FACTORS | _TRIANGULAR:
        return None
    name = ast.unparse(node)
    made = _made(facts, name)
    if made is None and op in _TRIANGULAR:
        return None
    if made is not None:
        return made
    lines = facts.written(name)
    return Factor(name, lines[0] if len(lines) == 1 else None, "", None)


def _made(facts: Facts, name: str) -> Factor | None:
    """Return the last line before the origin that factorises something under this name."""
    known = facts.meaning(name)
    call = None if known is None or not known.inside else parsing.expression(known.text)
    if known is not None and isinstance(call, ast.Call) and _factorises(call):
        return Factor(name, known.line, f"{name} = {known.text}", call)
    block = facts.around.block if facts.around is not None else ()
    found = [
        Factor(name, one.line, one.text, call)
        for one in block
        if one.line < (facts.origin.line or 0) and (call := _call_for(one.text, name)) is not None
    ]
    return found[-1] if found and facts.written(name) in {(), (found[-1].line,)} else None


def _call_for(text: str, name: str) -> ast.Call | None:
    line = parsing.statement(text)
    if not isinstance(line, ast.Assign) or not isinstance(line.value, ast.Call) or not _factorises(line.value):
        return None
    to = line.targets[0]
    first = to.elts[0] if isinstance(to, ast.Tuple) and to.elts else to
    return line.value if ast.unparse(first) == name else None


def _factorises(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in _FACTORISE


def mended(facts: Facts, op: str, made: Factor) -> Suggestion:
    """Return the line that factorises with a little added to what it is given."""
    at = "where it is made" if made.line is None else f"in line {made.line}"
    text = f"{made.name} is a factor: add a little to the diagonal of what is factorised, {at}, by its scale"
    if made.unchecked:
        text += f", and check the info of {made.of}: where it is not 0 there is no such factor"
    return Suggestion(f"{text}.", _line(facts, op, made))


def _line(facts: Facts, op: str, made: Factor) -> str:
    call = made.call
    part = None if call is None else fitting.target(call, made.of)
    statement = parsing.statement(made.text)
    if call is None or part is None or not made.text.isascii() or not isinstance(statement, ast.Assign):
        called = "torch.linalg.cholesky" if op.startswith("cholesky") else "torch.linalg.lu_factor"
        return f"{called}({_added(facts, 'K')})"
    source = made.text
    call = statement.value if isinstance(statement.value, ast.Call) else call
    part = fitting.target(call, made.of) or part
    cheap = naming.is_cheap(part)
    matrix = ast.unparse(part) if cheap else _MATRIX
    lines = [] if cheap else [f"{_MATRIX} = {ast.unparse(part)}"]
    lines.append(f"{fitting.put(source, part, lambda _: _added(facts, matrix))}  # line {made.line}")
    to = statement.targets[0]
    info = to.elts[-1] if made.unchecked and isinstance(to, ast.Tuple) and len(to.elts) >= _PAIR else None
    if isinstance(info, ast.Name) and info.id != "_":
        lines.append(f"assert not {info.id}.any()")
    return "\n".join(lines)


def _added(facts: Facts, matrix: str) -> str:
    """Return the matrix with a little on its diagonal: by its scale, as rounding is."""
    alone = all(len(one.shape) <= _PAIR for one in facts.origin.inputs)
    return f"{matrix} + 1e-5 * {_SCALES[0 if alone else 1].format(matrix)} * {_EYE.format(matrix)}"
