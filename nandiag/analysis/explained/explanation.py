"""One slug in words: what it is, how it looks, how to fix it, where to read on (reader side)."""

from __future__ import annotations

from dataclasses import dataclass

from nandiag.analysis.report import Suggestion

DOCS = "https://docs.pytorch.org/docs/stable/"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The text behind a slug.

    ``kind`` is ``cause`` (of a verdict), ``finding`` or ``warning``. The first sentence of ``what`` stands alone in
    lists. ``looks`` are lines of real reports; ``pages`` are pages of torch's documentation, below :data:`DOCS`.
    """

    slug: str
    what: str
    looks: tuple[str, ...] = ()
    fix: tuple[Suggestion, ...] = ()
    pages: tuple[str, ...] = ()
    kind: str = "cause"

    @property
    def title(self) -> str:
        """The first sentence of ``what``."""
        first, stop, _ = self.what.partition(". ")
        return first + stop.strip()

    @property
    def links(self) -> tuple[str, ...]:
        """Where to read on, as addresses."""
        return tuple(page if "://" in page else DOCS + page for page in self.pages)
