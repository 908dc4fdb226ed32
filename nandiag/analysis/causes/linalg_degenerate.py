"""A matrix factorisation, or its gradient, that does not exist for the matrix given (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes import fitting
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

EXPLAIN = Explanation(
    slug="linalg_degenerate",
    what="A factorisation, or its gradient, does not exist for the matrix it was given: it is singular or nearly "
    "so, or two of its eigenvalues or singular values are equal.",
    fix=(
        Suggestion(
            "Add a little to the diagonal.",
            "A + 1e-6 * torch.eye(n, device=A.device)",
        ),
        Suggestion(
            "Solve, do not invert; use float64 for small matrices.",
        ),
        Suggestion(
            "Of eigh and svd, use the values alone, or tell equal ones apart by a little noise: their gradients "
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
_JITTER = "A + 1e-6 * torch.eye(n, device=A.device)"


def explain(facts: Facts) -> Cause | None:
    """Name repeated eigenvalues behind a gradient, or a singular matrix behind a factorisation."""
    if not facts.finite_inputs:
        return None
    if facts.node is not None:
        return _gradient(facts) if facts.node.startswith(SPECTRAL) else None
    op = facts.op or ""
    if not op.startswith(FACTORISATIONS) or op.startswith(_NORMS):
        return None
    return Cause(
        slug="linalg_degenerate",
        evidence=(f"{op} of a finite matrix is not finite: the matrix is singular, or nearly so",),
        suggestions=(Suggestion("Add a little to its diagonal, or use a method for such matrices.", _jittered(facts)),),
        strength=LIKELY,
    )


def _jittered(facts: Facts) -> str:
    name = (facts.op or "").lstrip("_").removeprefix("linalg_").removesuffix("_ex")
    names = (name, "inverse" if name == "inv" else name, "inv" if name == "inverse" else name)
    fitted = (
        fitting.argument(facts.origin, one, lambda a: f"{a} + 1e-6 * torch.eye({a}.shape[-1], device={a}.device)")
        for one in names
    )
    return next((line for line in fitted if line is not None), _JITTER)


def _gradient(facts: Facts) -> Cause:
    name = facts.forward_op or "the factorisation"
    text = f"the gradient of {name} divides by differences of eigenvalues, or singular values: two are equal"
    return Cause(
        slug="linalg_degenerate",
        evidence=(text,),
        suggestions=(Suggestion("Tell equal values apart by a little noise, or use values alone.", _JITTER),),
        strength=LIKELY,
    )
