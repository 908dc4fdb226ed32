"""GPUs: errors of memory and bus, heat, throttling, memory that others hold (launcher; pure)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.doctor.check import OK, SKIPPED, WARNING, WRONG, Check
from nandiag.store.doctor import Gpu, Installation

NEAR_DEGREES = 5
BUSY = 0.5
# Xid errors after which a GPU is not to be trusted before a reset or a repair. Source: NVIDIA, "Xid Errors".
GRAVE_XIDS = {"48", "62", "63", "64", "74", "79", "92", "94", "95", "119", "120"}


def checks(found: Installation) -> Iterable[Check]:
    """Yield one check a GPU, or one that says why there is none to look at."""
    if not found.gpus:
        yield Check("GPUs", SKIPPED, found.unseen if found.driver and found.unseen else "none on this machine")
        return
    for gpu in found.gpus:
        yield _gpu(gpu)
    if found.unseen:
        yield Check("GPU health", SKIPPED, found.unseen, "Install the extra for ECC, Xid, temperature and throttling.")


def _gpu(gpu: Gpu) -> Check:
    name = f"GPU {gpu.index}"
    wrong = [*_errors(gpu)]
    if wrong:
        mend = "Take this GPU out of use and reset it (`nvidia-smi -r`); if the errors come back, have it replaced."
        return Check(name, WRONG, f"{gpu.name}: {'; '.join(wrong)}", mend)
    doubtful = [*_doubts(gpu)]
    if doubtful:
        mend = "See cooling, power and other processes on it (`nvidia-smi -q`)."
        return Check(name, WARNING, f"{gpu.name}: {'; '.join(doubtful)}", mend)
    return Check(name, OK, ", ".join([gpu.name, *_facts(gpu)]))


def _errors(gpu: Gpu) -> Iterable[str]:
    if gpu.ecc:
        yield f"{gpu.ecc} uncorrected ECC errors since the driver was loaded"
    grave = {number: count for number, count in gpu.xids.items() if number in GRAVE_XIDS}
    if grave:
        yield "in the kernel log " + ", ".join(f"Xid {number} ({count} times)" for number, count in grave.items())


def _doubts(gpu: Gpu) -> Iterable[str]:
    other = {number: count for number, count in gpu.xids.items() if number not in GRAVE_XIDS}
    if other:
        yield "in the kernel log " + ", ".join(f"Xid {number} ({count} times)" for number, count in other.items())
    if gpu.retired:
        yield f"{gpu.retired} rows or pages of memory were taken out of use"
    if gpu.temperature is not None and gpu.slowdown_at and gpu.temperature >= gpu.slowdown_at - NEAR_DEGREES:
        yield f"{gpu.temperature} degrees, and it slows down at {gpu.slowdown_at}"
    if gpu.throttled:
        yield f"held back now by {', '.join(gpu.throttled)}"
    if gpu.memory and gpu.memory_used and gpu.memory_used > BUSY * gpu.memory:
        yield f"{gpu.memory_used / 2**30:.0f} of {gpu.memory / 2**30:.0f} GiB are in use by other processes"


def _facts(gpu: Gpu) -> Iterable[str]:
    if gpu.memory:
        yield f"{gpu.memory / 2**30:.0f} GiB"
    if gpu.temperature is not None:
        yield f"{gpu.temperature} degrees"
    if gpu.ecc is not None:
        yield "no ECC errors"
