"""Warnings keep the script's line: those raised under a wrap of ours are told from where the script called (worker)."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from nandiag.runtime.frames import LIBRARY, USER, kind_of, stack


def install() -> None:
    """Wrap the one function through which Python shows a warning."""
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None:
        return

    def show(message: Any) -> None:
        if "nandiag" in message.filename and kind_of(message.filename) not in (USER, LIBRARY):
            frames, _ = stack(sys._getframe(1), 1)
            if frames:
                message.filename, message.lineno = frames[0].file, frames[0].line
        original(message)

    warnings._showwarnmsg = show  # type: ignore[attr-defined]
