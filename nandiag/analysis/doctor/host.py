"""The machine around the GPUs: shared memory, limits, adapters, disk (launcher; pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nandiag.analysis.doctor.check import OK, SKIPPED, WARNING, WRONG, Check

GIB = 2**30
LITTLE_SHM = 1 * GIB
TINY_SHM = 64 * 2**20
FEW_FILES = 4_096
NO_LIMIT = 2**62
LITTLE_DISK = 1 * GIB
TINY_DISK = 50 * 2**20


@dataclass(frozen=True, slots=True)
class Adapter:
    """One InfiniBand or RoCE port: ``device:port``, its state (``ACTIVE``) and link (``InfiniBand``, ``Ethernet``)."""

    name: str
    state: str
    link: str


@dataclass(frozen=True, slots=True)
class Host:
    """What the operating system says; sizes in bytes, ``None`` where it does not say."""

    shm_size: int | None = None
    shm_free: int | None = None
    open_files: int | None = None
    locked_memory: int | None = None
    adapters: tuple[Adapter, ...] = ()
    interfaces: tuple[str, ...] = ()
    log_folder: str = ""
    disk_free: int | None = None
    writable: str | None = None


def checks(host: Host, environ: Mapping[str, str], nproc: int) -> Iterable[Check]:
    """Yield the checks of the machine for ``nproc`` ranks."""
    yield _shm(host, nproc)
    yield _files(host)
    yield _adapters(host, environ)
    yield _disk(host)


def _size(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / 2**20:.0f} MiB"


def _shm(host: Host, nproc: int) -> Check:
    name = "shared memory"
    if host.shm_size is None or host.shm_free is None:
        return Check(name, SKIPPED, "this machine has none")
    seen = f"{_size(host.shm_free)} free of {_size(host.shm_size)} in /dev/shm"
    mend = "Give the container more (`--shm-size=16g` or `--ipc=host`), and remove stale files there."
    if host.shm_free < TINY_SHM:
        return Check(name, WRONG, f"{seen}: NCCL and DataLoader workers will fail", mend)
    if host.shm_free < LITTLE_SHM:
        return Check(name, WARNING, f"{seen}: little for {nproc} ranks with DataLoader workers", mend)
    return Check(name, OK, seen)


def _files(host: Host) -> Check:
    if host.open_files is None:
        return Check("open files", SKIPPED, "the limit is not known")
    if host.open_files < FEW_FILES:
        mend = "Raise it before the launch: `ulimit -n 65536`."
        return Check("open files", WARNING, f"at most {host.open_files:,} a process", mend)
    seen = "no limit" if host.open_files >= NO_LIMIT else f"at most {host.open_files:,} a process"
    return Check("open files", OK, seen)


def _adapters(host: Host, environ: Mapping[str, str]) -> Check:
    name = "InfiniBand, RoCE"
    if not host.adapters:
        return Check(name, SKIPPED, "no port on this machine")
    active = [port for port in host.adapters if "ACTIVE" in port.state]
    seen = ", ".join(f"{port.name} {port.link}" for port in active) or "no port is active"
    if environ.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return Check(name, WARNING, f"{seen}, but NCCL_IB_DISABLE is set", "Unset NCCL_IB_DISABLE to use them.")
    if not active:
        down = ", ".join(f"{port.name} {port.state}" for port in host.adapters)
        return Check(name, WARNING, f"no port is active: {down}", "Check cables and the subnet manager (ibstat).")
    chosen = chosen_ports(environ.get("NCCL_IB_HCA", ""), [port.name for port in active])
    if not chosen:
        mend = "Correct NCCL_IB_HCA, or unset it."
        return Check(name, WRONG, f"{seen}, but NCCL_IB_HCA={environ['NCCL_IB_HCA']} fits none of them", mend)
    if host.locked_memory is not None and host.locked_memory < GIB:
        mend = "Raise it: `ulimit -l unlimited`, in containers `--ulimit memlock=-1`."
        return Check(name, WARNING, f"{seen}; only {_size(host.locked_memory)} may be locked", mend)
    return Check(name, OK, f"{seen}; NCCL would use {', '.join(chosen)}")


def chosen_ports(wanted: str, ports: list[str]) -> list[str]:
    """Return the ports that NCCL_IB_HCA leaves: names that begin with one of its parts; ``^`` excludes, ``=`` is exact.

    Source: NCCL's documentation of the variable.
    """
    sign = next((sign for sign in ("^=", "=", "^") if wanted.startswith(sign)), "")
    parts = [part for part in wanted.removeprefix(sign).split(",") if part]
    if not parts:
        return ports
    exact, excluded = "=" in sign, "^" in sign
    return [port for port in ports if any(_fits(port, part, exact=exact) for part in parts) != excluded]


def _fits(port: str, part: str, *, exact: bool) -> bool:
    device, _, number = port.partition(":")
    wanted, _, wanted_number = part.partition(":")
    named = device == wanted if exact else device.startswith(wanted)
    return named and (not wanted_number or wanted_number == number)


def _disk(host: Host) -> Check:
    name = "log folder"
    if host.writable is not None:
        return Check(
            name, WRONG, f"{host.log_folder} cannot be written: {host.writable}", "Give another: --log-dir DIR."
        )
    if host.disk_free is None:
        return Check(name, SKIPPED, "free space is not known")
    seen = f"{_size(host.disk_free)} free for {host.log_folder}"
    if host.disk_free < LITTLE_DISK:
        state = WRONG if host.disk_free < TINY_DISK else WARNING
        return Check(name, state, seen, "Make room, or give another folder: --log-dir DIR.")
    return Check(name, OK, seen)
