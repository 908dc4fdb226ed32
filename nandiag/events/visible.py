"""Text of scripts and logs made safe to show: no control sequences, no invisible characters (launcher and reader)."""

from __future__ import annotations

import re
import unicodedata

# CSI; OSC, DCS, SOS, PM and APC up to their terminator; other escapes; in 7-bit and 8-bit form.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
LONGEST = 4_000
_SPACE = {"\n": " ", "\r": " ", "\t": " ", "\v": " ", "\f": " "}


def clean(text: str) -> str:
    """Return ``text`` on one line, without terminal control sequences and control characters, cut where endless."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    if cut.isprintable():  # most texts are: nothing in them to take out
        return cut
    return "".join(_visible(char, "") for char in _SEQUENCE.sub("", cut))


def clean_line(text: str) -> str:
    """Return a source line with each unsafe character replaced by one ``?``, so that columns still hold."""
    return text if text.isprintable() else "".join(_visible(char, "?") for char in text)


def _visible(char: str, instead: str) -> str:
    if char in _SPACE:
        return _SPACE[char]
    # Cc, Cf, Cs: control, format (bidirectional overrides among them) and surrogates; Zl, Zp: line separators.
    return instead if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else char
