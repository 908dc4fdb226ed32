"""What a script can find out about the process it runs in."""

# ruff: noqa: PTH109, PTH118, S301, T201 - an ordinary script

import inspect
import json
import os
import pickle
import sys
import traceback

import torch

count: int = 0


class Kept:
    pass


def broken():
    raise ValueError("the script's own words")


def told():
    main = sys.modules["__main__"]
    try:
        broken()
    except ValueError:
        trace = traceback.format_exc()
    return {
        "names": sorted(name for name in vars(main) if name != "__warningregistry__"),
        "name": __name__,
        "file": __file__,
        "doc": __doc__,
        "package": __package__,
        "cached": vars(main).get("__cached__"),
        "spec": getattr(__spec__, "name", None),
        "loader": type(__loader__).__name__,
        "loader name": getattr(__loader__, "name", None),
        "loader path": getattr(__loader__, "path", None),
        "builtins": type(__builtins__).__name__,
        "annotations": str(__annotations__),
        "argv": sys.argv,
        "path": [path for path in sys.path if not path.endswith(os.path.join("inject", "site"))],
        "flags": str(sys.flags),
        "pickled": pickle.dumps(Kept()).hex(),
        "unpickled": type(pickle.loads(pickle.dumps(Kept()))) is Kept,
        "source": inspect.getsource(Kept),
        "trace": trace,
        "depth": len(inspect.stack()),
        "threads": len(sys._current_frames()),
        "stdout": sys.stdout.isatty() or sys.stdout.line_buffering or sys.stdout.write_through,
        "dont write bytecode": sys.dont_write_bytecode,
        "recursion limit": sys.getrecursionlimit(),
        "grad": torch.is_grad_enabled(),
        "modes": torch._C._len_torch_function_stack(),
        "threads of torch": torch.get_num_threads(),
        "cwd": os.getcwd(),
        "umask": os.umask(0o22),
    }


if __name__ == "__main__":
    print(json.dumps(told()), flush=True)
