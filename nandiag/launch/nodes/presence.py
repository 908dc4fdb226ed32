"""Which launchers take part in a run, by a file of each in the run folder; its time tells who still lives (launcher).

The times compared are both the file system's: the clocks of nodes differ.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from nandiag.store.layout import RunFolder
from nandiag.store.run import AgentStart
from nandiag.store.writer import write_whole

BEAT_SECONDS = 2.0
# Several signs of life missed, and above the seconds for which a network file system may show an old time.
SILENT_SECONDS = 12.0
LOOK_SECONDS = 0.2


def name() -> str:
    """Return the name of this launcher in its run: host and process."""
    return f"{socket.gethostname()}-{os.getpid()}"


def register(folder: RunFolder) -> None:
    """Write that this launcher takes part in the run of ``folder``; raises OSError."""
    write_whole(folder.agent_start(name()), AgentStart(host=socket.gethostname(), pid=os.getpid()))


def registered(folder: RunFolder) -> tuple[str, ...]:
    """Return the names of the launchers that took part so far, this one among them."""
    try:
        return tuple(sorted(path.stem for path in folder.agents.glob("*.start") if not path.name.startswith(".")))
    except OSError:
        return ()


def ended(folder: RunFolder, agent: str) -> bool:
    """Whether a launcher wrote how its workers ended."""
    return folder.agent_end(agent).exists()


def lives(folder: RunFolder, agent: str, now: float) -> bool:
    """Whether a launcher has not ended and gave a sign of life lately; ``now`` is the file system's time."""
    path = folder.agent_start(agent)
    try:
        # Opening a file has a network file system ask for its newest time.
        with path.open("rb") as file:
            silent = now - os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    return silent < SILENT_SECONDS and not ended(folder, agent) and not _is_gone(path)


def file_time(folder: RunFolder) -> float:
    """Return the present time as the file system of the run folder tells it; raises OSError."""
    path = folder.agents / f".{name()}.time"
    path.touch(mode=0o600)
    with path.open("rb") as file:
        now = os.fstat(file.fileno()).st_mtime
    path.unlink(missing_ok=True)
    return now


def speaker(folder: RunFolder, nodes: tuple[str, ...]) -> str:
    """Return the launcher whose report stands for the run: of ``nodes``, in their order, the first not lost.

    This launcher itself where none of ``nodes`` is known to have ended or to live.
    """
    with contextlib.suppress(OSError):
        now = file_time(folder)
        return next((one for one in nodes if ended(folder, one) or lives(folder, one, now)), name())
    return name()


def wait_for_others(folder: RunFolder, seconds: float) -> None:
    """Wait until the other launchers of the run have ended or are gone, ``seconds`` at most; mark who is gone."""
    until = time.monotonic() + seconds
    others = [agent for agent in registered(folder) if agent != name()]
    with contextlib.suppress(OSError):
        while time.monotonic() < until and _living(folder, others):
            time.sleep(LOOK_SECONDS)
        living = _living(folder, others)
        for agent in others:
            if agent not in living and not ended(folder, agent):
                folder.agent_lost(agent).touch(mode=0o600)


def all_live(folder: RunFolder) -> bool:
    """Whether no launcher of the run is known to be gone without an end."""
    others = [agent for agent in registered(folder) if agent != name() and not ended(folder, agent)]
    try:
        return not others or len(_living(folder, others)) == len(others)
    except OSError:
        return True


def _living(folder: RunFolder, others: list[str]) -> list[str]:
    now = file_time(folder)
    return [agent for agent in others if lives(folder, agent, now)]


def _is_gone(path: Path) -> bool:
    """Whether a launcher of this very host is no process any more."""
    from nandiag.store.reader import MAX_AGENT, read_whole  # with a run of several nodes alone

    try:
        start: AgentStart = read_whole(path, AgentStart, MAX_AGENT)
        if start.host != socket.gethostname():
            return False
        os.kill(start.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


@contextlib.contextmanager
def beating(folder: RunFolder) -> Iterator[None]:
    """Keep this launcher's file young, by a daemon thread; in a run of one node there is none, and nothing is done."""
    path, over = folder.agent_start(name()), threading.Event()

    def keep() -> None:
        while not over.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=keep, name="nandiag-beat", daemon=True)
    if path.exists():
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(timeout=BEAT_SECONDS)
