"""Environment variables that are out of date, work against each other, or switch off what a report needs (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nandiag.analysis.doctor.check import OK, WARNING, WRONG, Check
from nandiag.analysis.doctor.versions import numbers

_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Renamed:
    """A name that torch has replaced, since that version of it."""

    old: str
    new: str
    since: tuple[int, int]


RENAMED = (
    Renamed("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT", (2, 2)),
    Renamed("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", (2, 2)),
    Renamed("NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG", (2, 2)),
    Renamed("NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING", (2, 2)),
    Renamed("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", (2, 9)),
    Renamed("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", (2, 9)),
    Renamed("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", (2, 9)),
)
# A value that switches something off: (variable, what is lost).
_OFF = (
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "no flight recorder is written when a collective times out"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "a collective that times out never ends the job"),
    ("TORCH_NCCL_ENABLE_MONITORING", "a rank whose watchdog is stuck is never ended"),
    ("TORCH_FR_BUFFER_SIZE", "the flight recorder is off: a report cannot say which collective a rank is at"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "the flight recorder is off: a report cannot say which collective a rank is at"),
)
_SLOW = (
    ("NCCL_P2P_DISABLE", "GPUs of a host talk through host memory"),
    ("NCCL_SHM_DISABLE", "ranks of a host talk through the network"),
    ("NCCL_NVLS_ENABLE", ""),
)


def checks(environ: Mapping[str, str], torch: str | None, interfaces: tuple[str, ...] = ()) -> list[Check]:
    """Return a check for each variable that is worth a word, or one that says that none is."""
    found = [
        *_renamed(environ, torch),
        *_off(environ),
        *_slow(environ),
        *_clashes(environ),
        *_names(environ, interfaces),
    ]
    return found or [Check("environment", OK, "no variable is out of date or in the way")]


def _renamed(environ: Mapping[str, str], torch: str | None) -> Iterable[Check]:
    version = numbers(torch)[:2]
    for one in RENAMED:
        if one.old in environ and version >= one.since:
            seen = f"this torch calls it {one.new}"
            clash = one.new in environ and environ[one.new] != environ[one.old]
            if clash:
                seen += f", and the two are set to {environ[one.old]} and {environ[one.new]}"
            yield Check(one.old, WARNING, seen, f"Set {one.new} alone.")


def _off(environ: Mapping[str, str]) -> Iterable[Check]:
    for name, lost in _OFF:
        if environ.get(name, "1").lower() in _NO:
            yield Check(name, WARNING, f"is {environ[name]}: {lost}", f"Unset {name}.")
    if environ.get("NCCL_DEBUG_FILE"):
        yield Check("NCCL_DEBUG_FILE", WARNING, "NCCL's logs go where you said, not into the run folder",
                    "Unset it, or read them with `nandiag report --nccl-logs`.")  # fmt: skip


def _slow(environ: Mapping[str, str]) -> Iterable[Check]:
    for name, what in _SLOW:
        if what and environ.get(name, "0").lower() not in {"", *_NO}:
            yield Check(name, WARNING, f"is set: {what}", "Unset it unless it mends something on this machine.")
    if environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        yield Check("TORCH_DISTRIBUTED_DEBUG", WARNING, "DETAIL checks every collective by another one, which is slow",
                    "Unset it once the fault is found.")  # fmt: skip
    if environ.get("CUDA_LAUNCH_BLOCKING", "0").lower() not in {"", *_NO}:
        yield Check("CUDA_LAUNCH_BLOCKING", WARNING, "every kernel is waited for, which is slow",
                    "Unset it once the fault is found.")  # fmt: skip


def _clashes(environ: Mapping[str, str]) -> Iterable[Check]:
    if environ.get("TORCH_NCCL_NAN_CHECK", "0").lower() not in {"", *_NO}:
        yield Check(
            "TORCH_NCCL_NAN_CHECK", WARNING,
            "a NaN in a collective ends the process by a device assert, before nandiag can look at the step",
            "Unset it: `nandiag run` finds the NaN where it is made.",
        )  # fmt: skip
    blocking = environ.get("TORCH_NCCL_BLOCKING_WAIT", "0").lower() not in {"", *_NO}
    if blocking and environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0").lower() not in {"", *_NO}:
        seen = "works against TORCH_NCCL_ASYNC_ERROR_HANDLING, which is set too"
        yield Check("TORCH_NCCL_BLOCKING_WAIT", WARNING, seen, "Keep one of them.")


def _names(environ: Mapping[str, str], interfaces: tuple[str, ...]) -> Iterable[Check]:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = environ.get(name, "")
        if wanted and interfaces and not wanted.startswith("^") and not _any_fits(wanted, interfaces):
            yield Check(name, WRONG, f"{wanted} fits no interface of this host ({', '.join(interfaces)})",
                        f"Correct {name}, or unset it.")  # fmt: skip


def _any_fits(wanted: str, interfaces: tuple[str, ...]) -> bool:
    parts = wanted.removeprefix("=").split(",")
    return any(
        name == part or (not wanted.startswith("=") and name.startswith(part)) for name in interfaces for part in parts
    )
