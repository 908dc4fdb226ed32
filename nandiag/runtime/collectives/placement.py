"""Where this rank computes and through what it talks, told once: at its first forward call, else when it ends (worker).

Nothing here makes a CUDA context that the script did not make: a device is asked only where CUDA is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from nandiag.events import Placed
from nandiag.runtime.guard import guarded
from nandiag.runtime.recorder import RECORDER


class Placement:
    """Tells once; ``trained`` yields the parameters that optimizers of this process train."""

    def __init__(self, trained: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._trained = trained
        self._told = False

    @guarded("placement")
    def tell(self) -> None:
        """Write the event, unless it was written, or there is nothing to say yet."""
        grouped = dist.is_available() and dist.is_initialized()
        if self._told or not RECORDER.attached or not (grouped or torch.cuda.is_initialized()):
            return
        self._told = True
        first = next(iter(self._trained()), None)
        current = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        properties = None if current is None else torch.cuda.get_device_properties(current)
        RECORDER.emit(
            Placed(
                device=None if first is None else str(first.device),
                current=current,
                visible=None if current is None else torch.cuda.device_count(),
                gpu=getattr(properties, "name", None),
                gpu_uuid=_uuid(properties),
                backends=_backends() if grouped else {},
            )
        )


def _uuid(properties: object) -> str | None:
    found = getattr(properties, "uuid", None)
    return None if found is None else f"GPU-{found}"


def _backends() -> dict[str, str]:
    """Return the backend of the default group by kind of device."""
    try:
        told = dist.get_backend_config()
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return {"cpu": dist.get_backend()}
    pairs = (part.partition(":") for part in str(told).split(",") if ":" in part)
    return {device: backend for device, _, backend in pairs}


def nccl_version() -> str | None:
    """Return the NCCL that this torch was built with, ``None`` in a build without."""
    try:
        if not dist.is_available() or not dist.is_nccl_available():
            return None
        version = torch.cuda.nccl.version()
    except Exception:
        return None
    return ".".join(map(str, version[:3])) if isinstance(version, tuple) else str(version)
