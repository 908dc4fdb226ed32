"""One hash over weights, buffers and random states, so that two runs can be compared bit for bit."""

import hashlib
import random

import torch

random.seed(1234)  # Python's own state is part of the hash


def _feed(digest, tensor):
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().contiguous().reshape(-1)
    digest.update(str(tensor.dtype).encode())
    if tensor.numel():
        digest.update(tensor.view(torch.uint8).numpy().tobytes())


def bits(*things):
    """Print the hash of modules and tensors, and of the random states of Python, the CPU and the device."""
    digest = hashlib.sha256()
    for thing in things:
        if isinstance(thing, torch.Tensor):
            _feed(digest, thing)
            continue
        for name, tensor in sorted([*thing.named_parameters(), *thing.named_buffers()], key=lambda pair: pair[0]):
            digest.update(name.encode())
            _feed(digest, tensor)
    digest.update(str(random.getstate()).encode())
    _feed(digest, torch.get_rng_state())
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        _feed(digest, torch.cuda.get_rng_state())
    print("BITS", digest.hexdigest()[:32], flush=True)
