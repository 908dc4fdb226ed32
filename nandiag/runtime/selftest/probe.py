"""What a fresh process finds when it imports torch, as JSON on stdout (a process of its own, started by doctor)."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import sys

from nandiag.events.forms import plain
from nandiag.runtime.selftest import gpus
from nandiag.store.doctor import Gpu, Installation

_LIBRARY = re.compile(r"(/\S*libnccl\S*\.so\S*)")


def installation() -> Installation:
    """Import torch and look around; never raises: what goes wrong is the ``trouble``."""
    python = platform.python_version()
    try:
        import torch
    except Exception as error:
        return Installation(
            python, trouble=f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
        )
    found, unseen = gpus.listed()
    loaded, path = loaded_nccl()
    return Installation(
        python=python,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        backends=_backends(torch.distributed),
        nccl_compiled=compiled_nccl(),
        nccl_loaded=loaded,
        nccl_path=path,
        driver=gpus.driver(),
        driver_cuda=gpus.driver_cuda(),
        gpus=found or _seen_by_torch(),
        usable=torch.cuda.device_count(),
        unseen=unseen,
        trouble=_cuda_trouble(),
    )


def compiled_nccl() -> str | None:
    """Return the version of NCCL that torch was built with, ``None`` in a build without."""
    import torch

    try:
        version = torch.cuda.nccl.version()
    except Exception:
        return None
    return ".".join(map(str, version[:3])) if isinstance(version, tuple) else str(version)


def loaded_nccl() -> tuple[str | None, str | None]:
    """Return version and path of the NCCL library in this process: what it says itself, not what torch was told."""
    path = _mapped()
    if path is None:
        return None, None
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number)) != 0:
            return None, path
    except (OSError, AttributeError):
        return None, path
    return version_text(number.value), path


def version_text(number: int) -> str:
    """Return ``2.27.3`` for NCCL's 22703, and ``2.8.4`` for the older way of counting, 2804."""
    base = 10_000 if number >= 10_000 else 1_000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _mapped() -> str | None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            found = _LIBRARY.search(file.read())
    except OSError:
        return None
    return found[1] if found else None


def _backends(distributed: object) -> tuple[str, ...]:
    told = [
        (name, getattr(distributed, f"is_{name}_available", None)) for name in ("gloo", "nccl", "ucc", "mpi", "xccl")
    ]
    return tuple(name for name, asked in told if asked is not None and asked())


def _seen_by_torch() -> tuple[Gpu, ...]:
    import torch

    try:
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except Exception:
        return ()
    return tuple(Gpu(index, name) for index, name in enumerate(names))


def _cuda_trouble() -> str | None:
    """Return why CUDA cannot be used although torch was built for it and GPUs are there."""
    import torch

    if torch.version.cuda is None or not torch.cuda.device_count():
        return None
    try:
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(plain(installation())) + "\n")
