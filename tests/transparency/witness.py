"""Runs a script as ``__main__``, then writes down every bit that its training ended with: ``witness.py SCRIPT ARGS``.

It stands between a launcher and a script, with nandiag or without, and keeps the script's models and optimizers alive.
"""

import gc
import hashlib
import json
import os
import random
import sys
import types
from pathlib import Path

import torch
from torch import nn

kept = []


def keeping(owner):
    made = owner.__init__

    def keep(self, *args, **kwargs):
        made(self, *args, **kwargs)
        kept.append(self)

    owner.__init__ = keep


def digest(thing, into):
    """Take in the bits of tensors, and everything else by its text, in order."""
    if isinstance(thing, torch.Tensor):
        thing = getattr(thing, "_local_tensor", thing)
        raw = thing.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if thing.numel() else b""
        into.update(f"{thing.dtype} {tuple(thing.shape)} {thing.requires_grad}".encode() + raw)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            digest(key if not isinstance(key, torch.Tensor) else "", into)
            digest(value, into)
    elif isinstance(thing, list | tuple):
        for value in thing:
            digest(value, into)
    else:
        into.update(repr(thing).encode())
    return into


def bits(*things):
    return digest(things, hashlib.sha256()).hexdigest()


def plain(module):
    own = vars(module).items()  # but for addresses, as torch.compile keeps one
    return {name: value for name, value in own if isinstance(value, int | float | str | None) and name[-3:] != "_id"}


def told():
    modules = [one for one in kept if isinstance(one, nn.Module)]
    optimizers = [one for one in kept if isinstance(one, torch.optim.Optimizer)]
    numpy = sys.modules.get("numpy")
    return {
        "modules": len(modules),
        "parameters": bits([list(one._parameters.values()) for one in modules]),
        "gradients": bits([[p.grad for p in one._parameters.values() if p is not None] for one in modules]),
        "buffers": bits([list(one._buffers.values()) for one in modules]),
        "attributes": bits([plain(one) for one in modules]),
        "hooks": [[len(one._forward_hooks), len(one._forward_pre_hooks), len(one._backward_hooks)] for one in modules],
        "optimizers": [bits(one.state_dict()) for one in optimizers],
        "torch": bits(torch.get_rng_state()),
        "python": bits(random.getstate()),
        "numpy": None if numpy is None else bits([part.tolist() if hasattr(part, "tolist") else part
                                                   for part in numpy.random.get_state()]),
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
    }  # fmt: skip


def main():
    path, out, rank = sys.argv[1], Path(os.environ["WITNESS"]), os.environ.get("RANK", "0")
    out.mkdir(exist_ok=True)
    # Ranks that share a stream write into each other's lines.
    os.dup2(os.open(out / f"{rank}.stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    sys.argv = sys.argv[1:]
    for owner in (nn.Module, torch.optim.Optimizer):
        keeping(owner)
    sys.path[0] = str(Path(path).parent)
    script = sys.modules["__main__"] = types.ModuleType("__main__")
    script.__file__ = path
    torch.manual_seed(11)
    random.seed(11)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(11)
    try:
        exec(compile(Path(path).read_text(), path, "exec"), vars(script))  # noqa: S102 - that is what it is for
    finally:
        (out / f"{rank}.json").write_text(json.dumps(told(), indent=1))
        kept.clear()
        gc.collect()


main()
