"""What a replay must leave as it was: gradients, buffers, generators, plain attributes, printed output (worker)."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import ROOT, Entry
from nandiag.runtime.tape.state import Attributes, generators


def roots_of(entries: list[Entry]) -> list[nn.Module]:
    """Return the root modules that the entries call, each once."""
    return list({id(entry.function): entry.function for entry in entries if entry.kind == ROOT}.values())


@contextlib.contextmanager
def traceless(
    capture: Capture, parameters: list[Tensor], entries: list[Entry], *, weights_written: bool = False
) -> Iterator[None]:
    """Keep gradients, buffers, generators, plain attributes and printed output as if no replay had been."""
    roots = roots_of(entries)
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    written = [(leaf, leaf.detach().clone()) for leaf in parameters] if weights_written else []
    buffers = [(buffer, buffer.detach().clone()) for root in roots for buffer in root.buffers()]
    attributes = [Attributes(root) for root in roots]
    own = {id(one): one for entry in entries if entry.generators is not None for one, _ in entry.generators.private}
    states = generators(full=True, private=own.values())
    streams = sys.stdout, sys.stderr
    window_was_open = capture.window.close()
    capture.off = True
    try:
        for parameter in parameters:
            parameter.grad = None
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in [*written, *buffers]:
                _restore(buffer, value)
        for kept in attributes:
            kept.put_back()
        states.put_back()
        capture.off = False
        if window_was_open:
            capture.window.open()


def _restore(buffer: Tensor, value: Tensor) -> None:
    # Only what differs is written, so that version counters move no more than they must.
    if not torch.equal(buffer, value):
        buffer.detach().copy_(value)
