"""A Cholesky factor of a matrix that has none: ``cholesky_ex`` says so in a second output alone (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_LOOKS = frozenset({"Diagonal", "Select", "Slice", "View", "Unsqueeze", "Squeeze", "Expand", "Alias"})
_UNSEEN = (
    "It comes of cholesky_ex, whose info was not looked at: where it is not 0 the matrix was not positive definite, "
    "and the factor is none."
)
_TEXT = (
    f"{_UNSEEN} Add to its diagonal what keeps it so (jitter), by its scale, and check info; a clamp here would only "
    "hide it."
)
_JITTER = 1e-5
# The matrix, its factor, what is called and where, as the script has them.
_SCALES = ("{0}.diagonal().mean()", "{0}.diagonal(dim1=-2, dim2=-1).abs().mean(-1)[..., None, None]")  # of one, of any
# Into the call: a weight refuses another value, and a buffer, or a variable beyond the step, would gather the jitter.
_ADDED = "{{0}} + 1e-5 * {} * torch.eye({{0}}.shape[-1], dtype={{0}}.dtype, device={{0}}.device)"
_CHECK = "{1}, info = {2}({0}){3}\nassert not info.any()"
_MADE_UP = ("K", "L", "torch.linalg.cholesky_ex", "")


def below_zero(known: Mapping[str, object], *, as_written: bool = False) -> Suggestion | None:
    """Say how to learn what is added to a matrix's diagonal where that is a weight below 0: no jitter mends that.

    Only where the matrix has no factor for that alone. ``as_written``: its name is known as the script writes it, else
    as the model has it.
    """
    told = known.get("diagonal")
    if not isinstance(told, list | tuple) or len(told) != _PAIR:
        return None
    name, least = str(told[0]), words.as_number(told[1])
    seen = known.get("diagonal_least")
    below, lowers = (
        map(words.as_number, seen) if isinstance(seen, list | tuple) and len(seen) == _PAIR else (None, None)
    )
    if below is None or lowers is None:
        return None  # it may be of no matter
    own = name if as_written else f"self.{name.rpartition('.')[2]}"
    text = (
        f"What is added to its diagonal is made of {own}, a weight that nothing keeps above 0, and it is "
        f"{words.number(0.0 if least is None else least)}. It takes {words.number(lowers)} off the eigenvalues, of "
        f"which the least is {words.number(below)}. Learn its logarithm: take that of what it begins with, and its "
        "exponential wherever it is used."
    )
    return Suggestion(text, f"{own}.data.log_()  # where it is made; {own}.exp() for it elsewhere")


_PAIR = 2


def learnt_noise(facts: Facts) -> Suggestion | None:
    """Say so of the matrix of which the op was given a factor, with the line that adds to it where that is near."""
    told = below_zero(facts.extra)
    name = str(facts.extra["diagonal"][0]).rpartition(".")[2] if told is not None else ""  # type: ignore[index]
    block = facts.around.block if facts.around is not None else ()
    shown = next(((one, put) for one in block if (put := _exponential(one.text, name)) is not None), None)
    if told is None or (shown is None and facts.extra.get("diagonal_if") == "shown"):
        return None
    if shown is None:
        return told
    return replace(told, code=f"{(told.code or '').partition(';')[0]}\n{shown[1]}  # line {shown[0].line}")


def _exponential(text: str, name: str) -> str | None:
    """Return a statement with the exponential of the weight of this name where a unit matrix is multiplied by it."""
    for node in fitting.nodes_of(text):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else ()
        for one, other in zip(sides, sides[::-1], strict=True):
            own = isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one).rpartition(".")[2] == name
            if own and fitting.target(other, "eye") is not None and text.isascii() and "\n" not in text:
                end = one.end_col_offset or 0
                return f"{text[:end]}.exp(){text[end:]}"
    return None


def unchecked(facts: Facts) -> Suggestion | None:
    """Say that a logarithm or a root was given the diagonal of such a factor; None where it was not."""
    nodes = facts.extra.get("made_by")
    made = [str(node).partition("Backward")[0] for node in nodes] if isinstance(nodes, list) else []
    first = next((node for node in made if node not in _LOOKS), None)
    learnt = learnt_noise(facts)
    if learnt is not None:
        return learnt
    if first != "LinalgCholeskyEx" or not facts.outputs_nan:
        return None
    names = _as_written(facts) or _MADE_UP
    code = _CHECK.format(_ADDED.format(_scale(facts)).format(names[0]), *names[1:])
    return _itself_below(facts, _CHECK.format(*names)) or Suggestion(_TEXT, code)


def _itself_below(facts: Facts, check: str) -> Suggestion | None:
    """Say what stands on the diagonal of the matrix where that is so far below 0 that no jitter mends it."""
    known = facts.extra.get("factored_diagonal")
    least, scale = map(words.as_number, known) if isinstance(known, list | tuple) and len(known) == _PAIR else (None, 0)
    if least is None or scale is None or not least + _JITTER * scale < 0:
        return None
    text = (
        f"{_UNSEEN} No jitter mends it: on its diagonal stands {words.number(least)}, and on that of a positive "
        "definite matrix every number is above 0. Look at what makes it: what it is scaled by, and what is added to "
        "its diagonal, has to stay above 0; where that is a weight, learn its logarithm. Check info; a clamp here "
        "would only hide it."
    )
    return Suggestion(text, check)


def _scale(facts: Facts) -> str:
    """Return the mean of the diagonal: of one matrix, which has no number below 0 there, in its short form."""
    known = facts.extra.get("factored_diagonal")
    least = words.as_number(known[0]) if isinstance(known, list | tuple) and known else None
    alone = facts.extra.get("factored_dims") == 2 and least is not None and least >= 0
    return _SCALES[0 if alone else 1]


def _as_written(facts: Facts) -> tuple[str, ...] | None:
    """Return the names that the script's own call has, where one line before the origin has it."""
    block = facts.around.block if facts.around is not None else ()
    line = facts.origin.line or 0
    found = [(one.line, call) for one in block if one.line <= line and (call := _unchecked_call(one.text)) is not None]
    if len(found) != 1:
        return None
    number, (factor, called, matrix) = found[0]
    if not isinstance(matrix, ast.Name | ast.Attribute):
        return None
    return ast.unparse(matrix), factor, called, f"  # line {number}"


def _unchecked_call(text: str) -> tuple[str, str, ast.expr] | None:
    """Return the factor's name, what is called and the matrix of ``chol, _ = torch.linalg.cholesky_ex(k)``."""
    line = parsing.statement(text)
    pair = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
    if not isinstance(line, ast.Assign) or not isinstance(pair, ast.Tuple) or len(pair.elts) != _PAIR:
        return None
    call, factor = line.value, pair.elts[0]
    if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords or not isinstance(factor, ast.Name):
        return None
    called = ast.unparse(call.func)
    return (factor.id, called, call.args[0]) if called.rpartition(".")[2] == "cholesky_ex" else None
