"""Loaded by Python in every process of the run; tiny, silent, and readable by old Pythons: children inherit it."""

import os
import sys


def _chain(here):
    # A sitecustomize of the user's or the system's must run as if ours were not there.
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path[:] = path


def _boot(root):
    try:
        import nandiag
    except ImportError:
        sys.path.append(root)
        try:
            import nandiag  # noqa: F401
        finally:
            sys.path.remove(root)
    from nandiag.runtime.inject.boot import boot

    boot("site")


if os.environ.get("NANDIAG_FOLDER") and sys.version_info >= (3, 10):
    try:
        _boot(os.environ.get("NANDIAG_ROOT", ""))
    except Exception:  # the script must start whatever happens here; a rank without a file is reported as not attached
        pass
_chain(os.path.dirname(os.path.abspath(__file__)))
