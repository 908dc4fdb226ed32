"""The messages of NCCL that are known, each with one sentence on what it means and one on what to do (pure).

The first entry that fits a message speaks for it; a message that fits none is shown as it was written. Meanings are
from NCCL's source (tags v2.19.3-1 to v2.30.7-1), its troubleshooting guide and its issue threads.
"""

from __future__ import annotations

from nandiag.analysis.nccl.catalogue import device, host, network, usage
from nandiag.analysis.nccl.catalogue.entry import Entry, Meaning

ENTRIES: tuple[Entry, ...] = (*network.ENTRIES, *host.ENTRIES, *device.ENTRIES, *usage.ENTRIES)


def meaning_of(message: str) -> Meaning | None:
    """Return what is known of a message, or ``None``."""
    return next((told for entry in ENTRIES if (told := entry.read(message)) is not None), None)


__all__ = ["ENTRIES", "Entry", "Meaning", "meaning_of"]
