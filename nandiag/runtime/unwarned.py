"""Warnings that nandiag's own doings would have Python give, left out (worker).

Past the functions of ``warnings``: after these, each warning of the script's that was shown once is shown again.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def unwarned(category: type[Warning], module: str | None = None) -> Iterator[None]:
    """Leave out what this thread warns of in a ``category``, in modules whose name begins as ``module`` says."""
    filters: Any = warnings.filters
    unsaid = ("ignore", _OfThread(), category, None if module is None else re.compile(module), 0)
    filters.insert(0, unsaid)
    try:
        yield
    finally:
        filters.remove(unsaid)


class _OfThread:
    """Stands where a filter has the pattern of a message, and is asked as that: what this very thread says matches."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()

    def match(self, _message: str) -> bool:
        """Whether this thread gave the warning; others of the script's say meanwhile what they have to say."""
        return threading.get_ident() == self._ident
