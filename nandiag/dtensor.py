"""``torch.autograd.detect_anomaly(check_nan=True)`` on DTensor, with or without the launcher (runs in any worker).

Without it every backward through a DTensor fails under the check (``aten._is_any_true.default does not have a sharding
strategy registered``). ``nandiag run`` brings it along; for a script of one's own::

    import nandiag.dtensor

    nandiag.dtensor.enable()

- A NaN raises on exactly the ranks whose own part holds it, with the forward line; no collective is added, so that
  ranks may run different numbers of backwards. Have the others end when one raises: torchrun does.
- ``torch._is_any_true``, ``torch._is_all_true`` and what is built on them (``torch._check_tensor_all``, the argument
  validation of distributions) answer for all ranks when a script calls them, by a collective: every rank of the mesh
  must call them. ``torch.isnan`` stays as torch has it.
- The shape inference of pipeline stages, which computes on memory that nobody has written, is left unchecked.
- Where torch itself answers the check rightly, torch does it.

``detect_anomaly`` looks for NaN alone: an Inf is never seen by it, on DTensor or elsewhere, nor is a NaN that comes
about only when parts are summed up across ranks (Inf on one, -Inf on another). ``nandiag run`` finds both.

Importing this module imports torch; :func:`enable` imports ``torch.distributed.tensor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nandiag.errors import NandiagError
from nandiag.runtime import anomaly_mode

__all__ = ["disable", "enable", "enabled"]

_ENABLE = "enable"


def enable() -> None:
    """Make the NaN check of anomaly mode work on DTensor in this process; calling it again changes nothing.

    Raises NandiagError where the installed torch has no DTensor, or one that is not known here.
    """
    _hold(_ENABLE)


def disable() -> None:
    """Take back :func:`enable`; what an open :func:`enabled` or ``nandiag run`` holds stays until its own end."""
    anomaly_mode.SUPPORT.release(_ENABLE)


@contextmanager
def enabled() -> Iterator[None]:
    """Make the NaN check work on DTensor while the context is open; contexts may nest, in any number of threads.

    Raises NandiagError as :func:`enable` does.
    """
    holder = object()
    _hold(holder)
    try:
        yield
    finally:
        anomaly_mode.SUPPORT.release(holder)


def _hold(holder: object) -> None:
    try:
        anomaly_mode.enable(holder)
    except (ImportError, AttributeError) as error:
        raise NandiagError(
            f"The NaN check of anomaly mode cannot be made to work on DTensor: {error}.",
            where="nandiag.dtensor, with the torch that is installed here.",
            todo="Use detect_anomaly(check_nan=False), or a torch that nandiag was tested with.",
        ) from error
