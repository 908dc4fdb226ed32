"""What a rank can say: events, the facts and sites in them, and their JSON form. Standard library only."""

from nandiag.events.codec import Record, decode, encode
from nandiag.events.facts import TensorFact
from nandiag.events.kinds import (
    PHASES,
    Activations,
    Armed,
    Attached,
    Event,
    Finished,
    Harm,
    History,
    Listening,
    Looked,
    Note,
    Placed,
    Printed,
    ProbeDark,
    Raised,
    Skipped,
    Stopping,
    Unknown,
    Warned,
)
from nandiag.events.site import Site

__all__ = [
    "PHASES",
    "Activations",
    "Armed",
    "Attached",
    "Event",
    "Finished",
    "Harm",
    "History",
    "Listening",
    "Looked",
    "Note",
    "Placed",
    "Printed",
    "ProbeDark",
    "Raised",
    "Record",
    "Site",
    "Skipped",
    "Stopping",
    "TensorFact",
    "Unknown",
    "Warned",
    "decode",
    "encode",
]
