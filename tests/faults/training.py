"""A short training with a NaN in it, watched in most of the ways that we watch; and a worker to train it in.

Each worker is a child of its own, forked, so that thousands of them cost no import of torch, and none knows another.
"""

import contextlib
import gc
import hashlib
import json
import os
import random
import resource
import selectors
import signal
import sys
import time
import traceback

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nandiag.events import Looked, Note, ProbeDark, decode
from nandiag.runtime.belongings.tracers import Untraced
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.watch.arm import arm
from nandiag.settings import Place, Settings
from nandiag.store.layout import RunFolder

SECONDS = 60
_write = os.write  # which a child may break
AT_ONCE = 2


class Net(nn.Module):
    """Batch normalisation, dropout, and a logarithm that meets a zero in one batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2))
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.body(x)) + torch.log(x.abs().sum(1, keepdim=True))


def bits(*things):
    """One word for every bit of them."""
    found = hashlib.sha256()
    for thing in things:
        if isinstance(thing, torch.Tensor):
            found.update(thing.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(thing, dict):
            found.update(bits(*thing.values()).encode())
        elif isinstance(thing, list | tuple):
            found.update(bits(*thing).encode())
        else:
            found.update(repr(thing).encode())
    return found.hexdigest()


def train():
    """Train for a few steps, one of them with a NaN, in most of the ways that we watch; returns every bit."""
    torch.manual_seed(3)
    random.seed(3)
    rows = torch.randn(24, 4)
    rows[13] = 0.0
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for (x,) in DataLoader(TensorDataset(rows), batch_size=6):
        optimizer.zero_grad()
        out = model(x)
        loss = (out - 1).square().mean() + 0.1 * torch.rand(()).item()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    value = torch.ones(3, requires_grad=True)
    torch.autograd.grad(value.square().sum(), value)
    return bits(
        model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()], losses, torch.get_rng_state(),
        random.getstate(), torch.is_grad_enabled(),
    )  # fmt: skip


def watched(folder, *, profile=None, damage=None, **settings):
    """Train as an armed worker, with a profile function and after ``damage``; returns the bits, and what was told."""
    run = RunFolder.at(folder)
    run.make()
    RECORDER.configure(Settings(folder=str(folder), run_id="test", on_anomaly="continue", **settings), "site")
    RECORDER.attach(Place(rank=0, world_size=1, local_rank=0, node_rank=0, attempt=0))
    sentinel = arm()
    if damage is not None:
        damage(run)
    if profile is not None:
        Untraced.begin = lambda _: None  # a replay, which hides from profilers, is to be seen here
        sys.setprofile(profile)
    try:
        told = train()
        leave(sentinel)
    finally:
        if profile is not None:
            sys.setprofile(None)
    return told, written(run)


def warm_up():
    """Import all that a training imports, before children are forked."""
    train()
    gc.collect()
    gc.freeze()


def modes_off():
    """Where a replay does not fit a worker watches op by op until it ends; this process goes on."""
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)


def leave(sentinel):
    """Say the last words as the interpreter's end has them said."""
    try:
        RECORDER.emit(sentinel.finish())
    except Exception as error:  # noqa: BLE001 - as there
        RECORDER.dark("last words", error)


def written(run):
    """What the rank's file holds: its probes that went dark with their reasons, and whether anything else says so."""
    events = []
    with contextlib.suppress(OSError):
        for path in sorted(run.ranks.glob("*.jsonl")):
            events += [decode(line).event for line in path.read_text().splitlines() if line.endswith("}")]
    dark = [(one.probe, one.reason) for one in events if isinstance(one, ProbeDark)]
    failed = any(isinstance(one, Looked) and one.outcome == "failed" for one in events)
    return {"dark": dark, "says": bool(dark) or failed or any(isinstance(one, Note) for one in events)}


def in_children(tasks, at_once=AT_ONCE, *, last=False):
    """Run each of ``tasks`` (name, function) in a child of its own, a few at once; yields (name, what it returned).

    That is None with the words of its traceback, or of its death, where it did not return. One that ran out of time is
    run once more by itself: what hangs does so again, and what was slow on a busy machine does not.
    """
    waiting, running, pipes, late = list(reversed(tasks)), {}, selectors.DefaultSelector(), []
    while waiting or running:
        while waiting and len(running) < at_once:
            name, function = waiting.pop()
            child, pipe = _fork(function)
            running[pipe] = (name, function), child, bytearray(), time.monotonic() + SECONDS
            pipes.register(pipe, selectors.EVENT_READ)
        for key, _ in pipes.select(1.0):
            data = os.read(key.fd, 1 << 16)
            running[key.fd][2].extend(data)
            if not data:
                yield _ended(pipes, running, key.fd)
        for pipe in [one for one, kept in running.items() if time.monotonic() > kept[3]]:
            task, child, *_ = running[pipe]
            os.kill(child, signal.SIGKILL)
            told = _ended(pipes, running, pipe)
            if last:
                yield *told[:2], f"took more than {SECONDS} s, twice"
            else:
                late.append(task)
    if late:
        yield from in_children(late, at_once=1, last=True)


def _ended(pipes, running, pipe):
    (name, _), child, data, _ = running.pop(pipe)
    pipes.unregister(pipe)
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    try:
        return name, *json.loads(data)
    except ValueError:
        return name, None, f"ended with {os.waitstatus_to_exitcode(status)}"


def _fork(function):
    back, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return child, back
    os.close(back)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = [function(), ""]
    except BaseException:  # noqa: BLE001 - whatever it is, the script would have seen it
        answer = [None, traceback.format_exc()[-2000:]]
    with contextlib.suppress(BaseException):
        sys.setprofile(None)
        _write(there, json.dumps(answer).encode())
    os._exit(0)
