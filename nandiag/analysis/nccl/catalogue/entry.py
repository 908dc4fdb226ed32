"""One known message of NCCL: how to recognise it, what it means, what to do (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a message means. ``follows``: it tells of the end of another process, so look for that one's first."""

    slug: str
    text: str
    mend: str
    severity: str = "warning"
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A pattern, a sentence and a mend; named groups of the pattern may stand in both, in braces."""

    slug: str
    pattern: str
    text: str
    mend: str
    severity: str = "warning"
    follows: bool = False
    search: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern once."""
        object.__setattr__(self, "search", re.compile(self.pattern))

    def read(self, message: str) -> Meaning | None:
        """Return what this entry says of ``message``, or ``None`` when it is another one's."""
        found = self.search.search(message)
        if found is None:
            return None
        parts = {name: text or "?" for name, text in found.groupdict().items()}
        text, mend = (words.format(**parts).replace(" (?)", "") for words in (self.text, self.mend))
        return Meaning(self.slug, text, mend, self.severity, self.follows)
