"""A hang as a finding of the report (reader side)."""

from __future__ import annotations

from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.report import Finding


def told_of(hang: Hang | None) -> tuple[Finding, ...]:
    """Return the finding that a hang is, none where there is no hang."""
    if hang is None:
        return ()
    text = f"{hang.summary[:1].upper()}{hang.summary[1:]}."
    return (Finding(hang.slug, "warning", text, hang.behind or hang.waiting, hang.step),)
