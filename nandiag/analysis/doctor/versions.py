"""Python, torch, CUDA, driver and NCCL: whether they fit each other (launcher; pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nandiag.analysis.doctor.check import OK, SKIPPED, WARNING, WRONG, Check
from nandiag.store.doctor import Installation

LEAST_PYTHON = (3, 10)
LEAST_TORCH = (2, 6)
# The least driver for every release of a CUDA major, by minor version compatibility. Source: CUDA release notes, table
# "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility".
LEAST_DRIVER = {13: 580, 12: 525, 11: 450}


def checks(found: Installation) -> Iterable[Check]:
    """Yield one check a version."""
    yield _least("Python", found.python, LEAST_PYTHON)
    if found.torch is None:
        yield Check("torch", WRONG, f"cannot be imported: {found.trouble}", "Install torch 2.6 or newer.")
        return
    yield _least("torch", found.torch, LEAST_TORCH)
    yield _driver(found)
    yield _nccl(found)


def _least(name: str, version: str, least: tuple[int, int]) -> Check:
    if numbers(version)[:2] >= least:
        return Check(name, OK, version)
    wanted = ".".join(map(str, least))
    return Check(name, WRONG, f"{version} is older than {wanted}", f"Install {name} {wanted} or newer.")


def numbers(version: str | None) -> tuple[int, ...]:
    """Return ``(2, 13, 0)`` for ``2.13.0+cu130``."""
    return tuple(int(part) for part in re.findall(r"\d+", (version or "").split("+")[0]))


def _driver(found: Installation) -> Check:
    name = "CUDA and driver"
    if found.cuda is None:
        return _without_cuda(name, found)
    built = f"torch is built for CUDA {found.cuda}"
    if found.driver is None:
        return Check(name, SKIPPED, f"{built}, and this machine shows no NVIDIA driver")
    driver = numbers(found.driver)[0]
    least = LEAST_DRIVER.get(numbers(found.cuda)[0], 0)
    if driver < least:
        mend = f"Update the driver, or install a torch built for {_fitting(driver)}."
        return Check(name, WRONG, f"{built}, which needs driver {least} or newer; this one is {found.driver}", mend)
    if found.trouble:
        mend = "See `nvidia-smi`; in a container, the NVIDIA runtime; after an update of the driver, reboot."
        return Check(name, WRONG, f"{built}, driver {found.driver}, but CUDA does not work: {found.trouble}", mend)
    return Check(name, OK, f"{built}, driver {found.driver} takes up to CUDA {found.driver_cuda or '?'}")


def _without_cuda(name: str, found: Installation) -> Check:
    if found.rocm is not None:
        return Check(name, SKIPPED, f"torch is built for ROCm {found.rocm}")
    if found.driver is None:
        return Check(name, SKIPPED, "a CPU build of torch on a machine without an NVIDIA driver")
    seen = f"torch is a CPU build, and this machine has the NVIDIA driver {found.driver}"
    return Check(name, WARNING, seen, "Install a CUDA build of torch to use the GPUs.")


def _fitting(driver: int) -> str:
    return next((f"CUDA {major}" for major, least in LEAST_DRIVER.items() if driver >= least), "an older CUDA")


def _nccl(found: Installation) -> Check:
    name = "NCCL"
    if "nccl" not in found.backends:
        return Check(name, SKIPPED, "this torch is built without NCCL")
    if found.nccl_loaded is None:
        return Check(name, SKIPPED, f"compiled with {found.nccl_compiled}; no library of it is loaded in this process")
    if numbers(found.nccl_loaded)[:3] == numbers(found.nccl_compiled)[:3]:
        return Check(name, OK, f"{found.nccl_loaded}, compiled and loaded")
    seen = f"compiled with {found.nccl_compiled}, but {found.nccl_loaded} is loaded from {found.nccl_path}"
    same_major = numbers(found.nccl_loaded)[:1] == numbers(found.nccl_compiled)[:1]
    newer = same_major and numbers(found.nccl_loaded) > numbers(found.nccl_compiled)
    mend = "Take other copies of libnccl out of LD_LIBRARY_PATH and LD_PRELOAD, or reinstall nvidia-nccl."
    return Check(name, WARNING if newer else WRONG, seen, mend)
