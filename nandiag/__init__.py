"""nandiag: find where numbers go bad in distributed PyTorch training. Importing it does not import torch."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["AnomalyStop", "__version__", "set_step"]


def __getattr__(name: str) -> object:
    """Load the public names that need the runtime only when they are asked for."""
    if name in {"AnomalyStop", "set_step"}:
        from nandiag.runtime import public

        return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
