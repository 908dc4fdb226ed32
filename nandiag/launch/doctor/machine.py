"""What the operating system says of this machine (launcher; Linux)."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from nandiag.analysis.doctor.host import NO_LIMIT, Adapter, Host

_PORTS = Path("/sys/class/infiniband")
_INTERFACES = Path("/sys/class/net")
_SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written to


def look(log_folder: Path) -> Host:
    """Return what can be seen without rights; ``log_folder`` need not exist yet."""
    shm = _space(_SHM)
    place = _existing(log_folder.absolute())
    disk = _space(place)
    return Host(
        shm_size=shm[0] if shm else None,
        shm_free=shm[1] if shm else None,
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        adapters=adapters(_PORTS),
        interfaces=tuple(path.name for path in _children(_INTERFACES)),
        log_folder=str(log_folder),
        disk_free=disk[1] if disk else None,
        writable=None if os.access(place, os.W_OK | os.X_OK) else "permission denied",
    )


def adapters(root: Path) -> tuple[Adapter, ...]:
    """Return the InfiniBand and RoCE ports below ``root``, a ``/sys/class/infiniband``."""
    return tuple(
        Adapter(f"{device.name}:{port.name}", _read(port / "state"), _read(port / "link_layer"))
        for device in _children(root)
        for port in _children(device / "ports")
    )


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"


def _space(path: Path) -> tuple[int, int] | None:
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def _existing(path: Path) -> Path:
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def _limit(what: int) -> int:
    soft = resource.getrlimit(what)[0]
    return NO_LIMIT if soft == resource.RLIM_INFINITY else soft
