"""What a user is told when something is wrong: sentences on stderr, never a traceback (launcher and reader)."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TextIO

from nandiag.errors import NandiagError

DETAILS = "nandiag-error.txt"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def complain(error: NandiagError) -> None:
    """Write the sentences of ``error`` to stderr."""
    first, *rest = error.sentences()
    tell(f"nandiag: {first}", *(f"         {sentence}" for sentence in rest))


def tell(*lines: str) -> None:
    """Write lines to stderr; silent where nobody listens."""
    # Python has no stderr where the process was started without one.
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()


def own_bug(error: BaseException, doing: str, folder: Path | None) -> None:
    """Tell of a bug of ours in one sentence, and write the details into ``folder`` or a temporary file."""
    text = "".join(traceback.format_exception(error))
    place = _keep(text, folder)
    kept = f"details are in {place}" if place else f"{type(error).__name__}: {error}"
    tell(f"nandiag: a bug in nandiag itself while {doing}; the training was not touched by it; {kept}.")


def _keep(text: str, folder: Path | None) -> Path | None:
    try:
        if folder is not None:
            path = folder / DETAILS
            with os.fdopen(os.open(path, _APPEND, 0o600), "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return path
        with tempfile.NamedTemporaryFile("w", prefix="nandiag-error-", suffix=".txt", delete=False) as file:
            file.write(text)
            return Path(file.name)
    except OSError:
        return None
