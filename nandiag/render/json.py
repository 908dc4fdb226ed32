"""The report as JSON text, exactly as ``report.json`` holds it (launcher and reader)."""

from __future__ import annotations

import json

from nandiag.analysis.report import Report
from nandiag.events.forms import plain


def dumps(report: Report) -> str:
    """Return the report as indented JSON; non-finite numbers are the strings ``nan``, ``inf`` and ``-inf``."""
    return json.dumps(plain(report), indent=2, allow_nan=False)
