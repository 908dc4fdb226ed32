"""Both launchers, imported once: each run forks one, so that a case costs no import of torch beside its workers'.

``Launchers().run(["nandiag", "run", ...], folder, environment, seconds)`` is what the command itself would have been,
and ``["torchrun", ...]`` likewise; the workers are processes of their own in any case.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_LATE = -1


class LateError(Exception):
    """The launcher did not end in time and was killed, with its workers; the message is what it wrote to stderr."""


class Launchers:
    """The process that forks; one run at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def run(
        self, words: list[str], folder: Path, environment: dict[str, str], seconds: float, out: Path | None = None
    ) -> tuple[int, Path]:
        """Run a launcher in ``folder``; returns its exit code and where ``stdout`` and ``stderr`` lie (``out``)."""
        asked = {"words": words, "folder": str(folder), "environment": environment, "seconds": seconds}
        out = folder if out is None else out
        print(json.dumps({**asked, "out": str(out)}), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        if code == _LATE:
            raise LateError((out / "stderr").read_text(errors="replace"))
        return code, out

    def finished(
        self, words: list[str], folder: Path, environment: dict[str, str], seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a launcher in ``folder``, which stays as it leaves it, and return what it ended with and wrote."""
        with tempfile.TemporaryDirectory() as told:
            code, out = self.run(words, folder, environment, seconds, Path(told))
            return subprocess.CompletedProcess(
                words, code, (out / "stdout").read_bytes(), (out / "stderr").read_bytes()
            )

    def close(self) -> None:
        """Let the process end."""
        self._process.stdin.close()
        self._process.wait(timeout=60)


def serve() -> None:
    import torch.distributed.run

    import nandiag.cli.main
    import nandiag.cli.run  # what the command imports as it goes

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            launch(asked, {"nandiag": nandiag.cli.main.main, "torchrun": torch.distributed.run.main})
        print(wait(child, asked["seconds"]), flush=True)  # noqa: T201 - the answer


def launch(asked: dict[str, object], known: dict[str, object]) -> None:
    """Become the launcher; does not return."""
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(asked["out"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    name, *words = asked["words"]
    sys.argv = [name, *words]
    code = 1
    try:
        code = known[name]() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float) -> int:
    """Wait for a launcher, kill it with all it started when it is late; returns its exit code as a shell has it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return _LATE


if __name__ == "__main__":
    serve()
