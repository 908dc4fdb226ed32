"""A matrix factorisation, or its gradient, that does not exist for the matrix given (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.causes.mends.matrices import determinants, solves
from nandiag.analysis.causes.mends.script import fitting, naming, parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

EXPLAIN = Explanation(
    slug="linalg_degenerate",
    what="A factorisation, or its gradient, does not exist for the matrix it was given: it is singular or nearly "
    "so, or two of its eigenvalues or singular values are equal.",
    looks=(
        "error[linalg_degenerate]: NaN born on rank 0 at step 11 in backward of Whiten",
        "the gradient of linalg_eigh divides by differences of eigenvalues, or singular values: two are equal",
    ),
    fix=(
        Suggestion(
            "Add a little to the diagonal.",
            "A + 1e-6 * torch.eye(n, device=A.device)",
        ),
        Suggestion(
            "Solve, do not invert; use float64 for small matrices.",
        ),
        Suggestion(
            "Of eigh and svd, use the values alone, or tell equal ones apart on the diagonal: their gradients "
            "divide by differences of values.",
        ),
    ),
    pages=(
        "linalg.html",
        "generated/torch.linalg.svd.html",
        "generated/torch.linalg.eigh.html",
        "notes/numerical_accuracy.html",
    ),
)

SPECTRAL = ("LinalgEigh", "LinalgEig", "LinalgSvd", "LinalgQr", "Svd", "Symeig")
FACTORISATIONS = ("linalg_", "_linalg_", "cholesky", "lu_solve", "inverse", "triangular_solve", "svd", "qr")
_NORMS = ("linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "linalg_cross")
_JITTER = "{0} + 1e-6 * torch.eye({0}.shape[-1], device={0}.device)"
# Noise that is drawn in each step would give each step other vectors of the equal values. Each matrix of a batch has
# a size of its own, and what is lost in rounding beside it tells nothing apart. Singular values of 0 are moved as well:
# the gradient of a matrix that is not square divides by them.
_RAMP = (
    "{0} + torch.diag_embed(1e-5 * {0}.detach().abs().amax((-2, -1)).clamp_min(1e-3)[..., None] * "
    "torch.arange({0}.shape[-1]).to({0}))"
)
_RAMP_OF_ANY = (
    "{0} + 1e-5 * {0}.detach().abs().amax((-2, -1), keepdim=True).clamp_min(1e-3) * "
    "torch.arange(1, {0}.shape[-1] + 1).to({0}) * torch.eye(*{0}.shape[-2:]).to({0})"
)

_ROUNDED = "the determinant is negative by rounding: of a product with its own transpose it is 0 or more"
_FEWER = "The matrix is singular, as of fewer samples than columns: add a little to its diagonal."
_ALSO = {"inv": "inverse", "inverse": "inv", "slogdet": "logdet"}
# Of a factorisation: what gives its values alone, and where it hands them back itself.
_VALUES = {"svd": ("svdvals", 1), "eig": ("eigvals", 0), "eigh": ("eigvalsh", 0)}


def explain(facts: Facts) -> Cause | None:
    """Name repeated eigenvalues behind a gradient, or a singular matrix behind a factorisation."""
    if determinants.is_rounded(facts):
        code = fitting.argument(facts.origin, "logdet", _JITTER.format)
        return Cause("linalg_degenerate", (_ROUNDED,), (Suggestion(_FEWER, code or _JITTER.format("A")),))
    if not facts.finite_inputs:
        return None
    if facts.node is not None:
        return _gradient(facts) if facts.node.startswith(SPECTRAL) else None
    op = facts.op or ""
    if not op.startswith(FACTORISATIONS) or op.startswith(_NORMS):
        return None
    made = solves.factor(facts, _bare(op))
    if made is not None:
        return _of_factor(facts, made)
    return Cause(
        slug="linalg_degenerate",
        evidence=(f"{op.lstrip('_')} of a finite matrix is not finite: the matrix is singular, or nearly so",),
        suggestions=(
            Suggestion(
                "Add a little to its diagonal, or use a method for such matrices.",
                _fitted(facts, facts.op, _JITTER) or _JITTER.format("A"),
            ),
        ),
        strength=LIKELY,
    )


def _of_factor(facts: Facts, made: solves.Factor) -> Cause:
    """A solve by a factor: what is wrong came about where that was made, by no value that is not finite."""
    op = _bare(facts.op or "")
    at = "" if made.line is None else f" of line {made.line}"
    by = f", made by {made.of}, which says in its info alone that there is none," if made.unchecked else ""
    seen = f"{op} of finite values is not finite: the factor {made.name}{at}{by} is of a matrix that is singular, or "
    seen += "nearly so, or not positive definite" if made.of.startswith("cholesky") or "cholesky" in op else "nearly so"
    return Cause("linalg_degenerate", (seen,), (solves.mended(facts, op, made),), LIKELY)


def _bare(op: str) -> str:
    return op.lstrip("_").removeprefix("linalg_").removesuffix("_ex")


def _gradient(facts: Facts) -> Cause:
    name = _factorisation(facts) or "the factorisation"
    text = f"the gradient of {name} divides by differences of eigenvalues, or singular values: {_equal(facts)}"
    ramp = _RAMP if name.startswith("linalg_eig") else _RAMP_OF_ANY  # what has no eigenvalues need not be square
    apart = Suggestion(
        "Tell equal values apart by numbers that rise along the diagonal, each small beside the matrix; the same "
        "number on all of it does not.",
        _rising(facts, ramp) or _RAMP.format("A"),
    )
    alone = _values_alone(facts)
    return Cause("linalg_degenerate", (text,), (apart, *([] if alone is None else [alone])), LIKELY)


def _equal(facts: Facts) -> str:
    """Return how many are equal, as far as the differences that are 0 tell: of one matrix both ways round."""
    by = facts.origin.inputs[-1]
    size = by.shape[-1] if len(by.shape) == 2 and by.shape[0] == by.shape[1] else 0
    off = size * (size - 1)
    if facts.op != "div" or not by.zeros or by.zeros == 2:
        return "two are equal"
    return f"all {size} are equal" if off > 2 and by.zeros in {off, size * size} else "some are equal"


def _rising(facts: Facts, ramp: str) -> str | None:
    """Return the user's line with numbers that rise added to its matrix, which has a name where it is computed."""
    found, op = fitting.parsed(facts.origin), facts.forward_op
    given = None if found is None else fitting.target(found[1], _factorisation(facts).removeprefix("linalg_"))
    line = None
    if given is not None and not naming.is_cheap(given):
        named = _fitted(facts, op, ramp.format(_MATRIX))
        line = naming.before(facts.origin, _MATRIX, ast.unparse(given), named)
    return line or _fitted(facts, op, ramp)


_MATRIX = "matrix"


def _factorisation(facts: Facts) -> str:
    return (facts.forward_op or "").lstrip("_")


def _values_alone(facts: Facts) -> Suggestion | None:
    """Return the line that gives the values of the same factorisation alone; ``None`` where it is of no use.

    So it is where there are no values, and where the script throws them away.
    """
    values, at = _VALUES.get(_factorisation(facts).removeprefix("linalg_"), (None, 0))
    if values is None:
        return None
    found, line = fitting.parsed(facts.origin), parsing.statement((facts.origin.source or "").strip())
    given = [] if found is None else [one for op in _VALUES if (one := fitting.target(found[1], op)) is not None]
    code = f"torch.linalg.{values}({ast.unparse(given[0])})" if given else None
    names = line.targets[0] if isinstance(line, ast.Assign) else None
    if isinstance(names, ast.Tuple) and at < len(names.elts) and code is not None:
        kept = ast.unparse(names.elts[at])
        code = None if kept.startswith("_") else f"{kept} = {code}"
        if code is None:
            return None
    text = "Or, where nothing needs the vectors, use the values alone, whose gradient has no such division"
    return Suggestion(f"{text}." if code is not None else f"{text}: torch.linalg.{values}.", code)


def _fitted(facts: Facts, op: str | None, guard: str) -> str | None:
    """Return the user's line with the matrix that goes into ``op`` guarded."""
    name = _bare(op or "")
    part, found = solves.given(facts, name), fitting.parsed(facts.origin)
    if part is not None and found is not None:
        return fitting.line_of(facts.origin, found[0], part, guard.format)
    names = {name, _ALSO.get(name, name)}
    lines = (fitting.argument(facts.origin, one, guard.format) for one in sorted(names))
    return next((line for line in lines if line is not None), None)
