"""A Cholesky factor of a matrix that has none: ``cholesky_ex`` says so in a second output alone (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

_LOOKS = frozenset({"Diagonal", "Select", "Slice", "View", "Unsqueeze", "Squeeze", "Expand", "Alias"})
_TEXT = (
    "It comes of cholesky_ex, whose info was not looked at: where it is not 0 the matrix was not positive definite, "
    "and the factor is none. Add to its diagonal what keeps it so (jitter), by its scale, and check info; a clamp here "
    "would only hide it."
)
_CODE = (
    "K = K + 1e-5 * K.diagonal().mean() * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)\n"
    "L, info = torch.linalg.cholesky_ex(K)\n"
    "assert not info.any()"
)


def unchecked(facts: Facts) -> Suggestion | None:
    """Say that a logarithm or a root was given the diagonal of such a factor; None where it was not."""
    nodes = facts.extra.get("made_by")
    made = [str(node).partition("Backward")[0] for node in nodes] if isinstance(nodes, list) else []
    first = next((node for node in made if node not in _LOOKS), None)
    return Suggestion(_TEXT, _CODE) if first == "LinalgCholeskyEx" and facts.outputs_nan else None
