"""Warnings that nandiag's own doings would have Python give, left out (worker).

Past the functions of ``warnings``: after these, each warning of the script's that was shown once is shown again.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def unwarned(category: type[Warning], module: str | None = None) -> Iterator[None]:
    """Leave out warnings of a ``category``, of modules whose name begins as ``module`` says, for a time."""
    filters: Any = warnings.filters
    unsaid = ("ignore", None, category, None if module is None else re.compile(module), 0)
    filters.insert(0, unsaid)
    try:
        yield
    finally:
        filters.remove(unsaid)
