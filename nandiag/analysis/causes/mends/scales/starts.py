"""What to do about weights or inputs that are too large from the start (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion

NORMALISE = Suggestion("Normalise the inputs, by the mean and deviation of the training set.")


def advice(facts: Facts) -> tuple[Suggestion, ...]:
    """Return how to bring down the weights, and the inputs: code of a layer only where the script has layers."""
    text = "Bring down the scale of the initialisation: its deviation should fall with the root of the width."
    code = "torch.nn.init.kaiming_normal_(layer.weight)" if _has_layers(facts) else None
    return (Suggestion(text, code), NORMALISE)


def _has_layers(facts: Facts) -> bool:
    """Whether the script has modules, as far as is known: its optimizer may train some, its own loop makes weights."""
    by_hand = facts.harm is not None and facts.harm.optimizer is None and "model" not in facts.harm.names
    return facts.origin.module is not None or not by_hand
