"""The second way in (``--inject exec``): attach the runtime, then run the script as Python itself would have.

Started by the launcher as ``python exec_script.py SCRIPT ARGS`` or ``python exec_script.py -m MODULE ARGS``.
"""

from __future__ import annotations

import io
import os
import sys
import types
from importlib.machinery import SourceFileLoader


def main() -> None:
    """Run the script named in ``sys.argv[1:]`` as ``__main__``."""
    words = sys.argv[1:]
    _attach()
    try:
        _run_module(words[1:]) if words[0] == "-m" else _run_file(words)
    except SystemExit:
        raise
    except BaseException as error:
        # Word for word what Python prints: our own frames are taken off the traceback.
        sys.excepthook(type(error), error, _own_frames_off(error.__traceback__))
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _attach() -> None:
    root = os.environ.get("NANDIAG_ROOT", "")
    sys.path[0] = root
    try:
        from nandiag.runtime.inject.boot import boot

        boot("exec")
    except Exception:
        sys.path[0] = ""


def _run_file(words: list[str]) -> None:
    path = os.path.abspath(words[0])  # Python's own way: in sys.argv alone it stays as it was given
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    main_module.__loader__ = SourceFileLoader("__main__", path)
    main_module.__dict__.update(__builtins__=sys.modules["builtins"], __spec__=None, __package__=None, __cached__=None)
    sys.modules["__main__"] = main_module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is what this file is for


def _run_module(words: list[str]) -> None:
    import runpy

    sys.argv = ["-m", *words[1:]]
    sys.path[0] = os.getcwd()
    main_module = sys.modules["__main__"] = types.ModuleType(
        "__main__"
    )  # the module's names go there, and none of ours
    main_module.__dict__["__builtins__"] = sys.modules["builtins"]
    runpy._run_module_as_main(words[0], alter_argv=True)  # type: ignore[attr-defined]  # what `python -m` itself calls


def _own_frames_off(traceback: types.TracebackType | None) -> types.TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main()
