"""What NVIDIA's driver tells of the GPUs of a machine, as far as it is asked without a new dependency (own process).

``nvidia-ml-py`` (the extra ``nandiag[gpu]``) tells errors, temperatures and throttling; without it the driver's version
and torch's list are left.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections import Counter
from typing import Any

from nandiag.store.doctor import Gpu

_XID = re.compile(r"NVRM: Xid \(PCI:(?:0000:)?([0-9A-Fa-f:.]+)\): (\d+)")
_VERSION = re.compile(r"Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
# Reasons that hold clocks back for want of power or cooling; idle, the user's settings and the power cap are none.
_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def listed() -> tuple[tuple[Gpu, ...], str | None]:
    """Return what NVML tells of each GPU, and why it could not be asked (``None``: it was)."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return (), "nvidia-ml-py is not installed (pip install 'nandiag[gpu]')"
    try:
        pynvml.nvmlInit()
        xids = kernel_xids()
        return tuple(_gpu(pynvml, index, xids) for index in range(pynvml.nvmlDeviceGetCount())), None
    except Exception as error:
        return (), f"NVML cannot be asked: {str(error)[:200]}"


def _gpu(nvml: Any, index: int, xids: dict[str, dict[str, int]]) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    bus = _text(getattr(_ask(nvml.nvmlDeviceGetPciInfo, handle), "busId", None))
    return Gpu(
        index=index,
        name=_text(_ask(nvml.nvmlDeviceGetName, handle)) or "?",
        uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
        bus=bus,
        memory=getattr(memory, "total", None),
        memory_used=getattr(memory, "used", None),
        ecc=_ask(nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
        retired=_retired(nvml, handle),
        temperature=_ask(nvml.nvmlDeviceGetTemperature, handle, 0),
        slowdown_at=_ask(nvml.nvmlDeviceGetTemperatureThreshold, handle, 1),
        throttled=throttled(_reasons(nvml, handle)),
        xids=xids.get(short_bus(bus), {}),
    )


def _ask(function: Any, *words: Any) -> Any:
    """Return what NVML answers, ``None`` where this GPU or this driver does not tell."""
    try:
        return function(*words)
    except Exception:
        return None


def _reasons(nvml: Any, handle: Any) -> int:
    """Return NVML's mask of reasons; the function has a new name since driver 535."""
    asked = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    found = None if asked is None else _ask(asked, handle)
    return int(found or _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0)


def _retired(nvml: Any, handle: Any) -> int | None:
    """Return how many rows or pages of memory were taken out or wait to be."""
    rows = _ask(nvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        return int(rows[1]) + int(rows[2])
    pages = _ask(nvml.nvmlDeviceGetRetiredPages, handle, 1)
    return None if pages is None else len(pages)


def throttled(mask: int) -> tuple[str, ...]:
    """Return the reasons in NVML's mask that are trouble."""
    return tuple(name for bit, name in _REASONS.items() if mask & bit)


def kernel_xids(text: str | None = None) -> dict[str, dict[str, int]]:
    """Return Xid errors of the kernel log by bus and number; empty where it may not be read."""
    text = _kernel_log() if text is None else text
    counts: dict[str, Counter[str]] = {}
    for bus, number in _XID.findall(text):
        counts.setdefault(short_bus(bus), Counter())[number] += 1
    return {bus: dict(found) for bus, found in counts.items()}


def short_bus(bus: str | None) -> str:
    """Return ``c8:00`` for ``00000000:C8:00.0``."""
    parts = (bus or "").lower().split(".")[0].split(":")
    return ":".join(parts[-2:])


def _kernel_log() -> str:
    parts: list[bytes] = []
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while len(parts) < 100_000:
            try:
                parts.append(os.read(log, 8192))
            except BrokenPipeError:
                continue  # an entry was overwritten while we read
    except OSError as error:
        if error.errno != errno.EAGAIN:
            return ""
    finally:
        os.close(log)
    return b"\n".join(parts).decode("utf-8", "replace")


def driver() -> str | None:
    """Return the version of NVIDIA's kernel driver, ``None`` where there is none."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            found = _VERSION.search(file.read(4096))
    except OSError:
        return None
    return found[1] if found else None


def driver_cuda() -> str | None:
    """Return the newest CUDA that the driver's own library takes."""
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _text(value: Any) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None if value is None else str(value)
