"""Every function of ours in a worker is broken, one at a time: training ends with the same bits and somebody says so.

Nothing is listed here: what runs in a worker is found by running it, so that a new function is covered by itself. Left
out are those that torch or the script call in the place of what they wrap: there is nothing above them to catch it.
"""

import errno
import hashlib
import os
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nandiag
from nandiag.events import Looked, Note, ProbeDark
from nandiag.runtime.look.losses import Losses
from nandiag.runtime.look.weights import Weights
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.window import Window
from nandiag.runtime.watch.arm import arm
from nandiag.runtime.watch.judge import Judge

ROOT = f"{Path(nandiag.__file__).parent}/"
WORKER = (f"{ROOT}runtime/", f"{ROOT}store/writer.py", f"{ROOT}events/")
# What the guard itself and our wraps ask before anything else: a set, a few flags, and their own two lines. And what
# ends a context: broken at its first line, nothing can have been ended. ``_listed`` reads what the script gives.
GLUE = {"is_dark", "idle", "here", "_tape", "wrapper", "__exit__", "end", "guarded", "decorate", "call", "_listed"}
GLUE |= {"undo_all", "pass_on"}
# A number less in a report that is right without it, or an event that has nothing to say.
QUIET = {"_stat_of", "last_words", "_stop", "__len__", "close", "local", "_wide", "in_float64", "_started_from"}
# The parts of one large function of those, which have no names of their own.
UNNAMED = {
    ("runtime/evidence/explain.py", "<dictcomp>"),
    ("runtime/evidence/explain.py", "<genexpr>"),
    ("runtime/replay/update.py", "<genexpr>"),
}

PARTS = 8


class BrokenError(Exception):
    """What a broken function of ours raises."""


class Net(nn.Module):
    """Batch normalisation, dropout, and a logarithm that meets a zero in one batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2))
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.body(x)) + torch.log(x.abs().sum(1, keepdim=True))


def bits(*things):
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


class Breaker:
    """A profile function that sees each call of a function of ours; raises in the first one of ``target``."""

    def __init__(self, target=None):
        self.target = target
        # In an object that a replay does not put back: what it runs is to be seen as well.
        self.seen = SimpleNamespace(entries=set(), inner=set(), broke=False)

    def __call__(self, frame, event, _arg):
        code, back = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(WORKER):
            return
        name = code.co_filename[len(ROOT) :], code.co_firstlineno, code.co_name
        inside = back is not None and back.f_code.co_filename.startswith(ROOT)
        (self.seen.inner if inside else self.seen.entries).add(name)
        if name == self.target and inside and not self.seen.broke:
            self.seen.broke = True
            raise BrokenError(code.co_name)  # Python takes the profile function off when it raises


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


@pytest.fixture
def worker_run(recording, as_it_was):
    """Train in this process, armed, with a breaker; returns the bits and what was written."""

    def run(breaker, level="step"):
        with as_it_was():
            worker = recording(on_anomaly="continue", level=level)
            for file in worker.folder.ranks.iterdir():
                file.write_bytes(b"")
            sentinel = arm()
            sys.setprofile(breaker)
            try:
                told = train()
                leave(sentinel)
            finally:
                sys.setprofile(None)
                sentinel.looker.live.stop()
                sentinel.capture.window.close()
                modes_off()
        return told, worker.events()

    return run


def says_so(events):
    words = [one for one in events if isinstance(one, ProbeDark | Note)]
    return bool(words) or any(isinstance(one, Looked) and one.outcome == "failed" for one in events)


def targets(worker_run, level="step"):
    seen = Breaker()
    worker_run(seen, level)
    assert seen.seen.inner
    return sorted(name for name in seen.seen.inner - seen.seen.entries if name[2] not in GLUE)


def break_each(worker_run, names, level="step"):
    plain = train()
    other, silent = [], []
    for name in names:
        breaker = Breaker(name)
        try:
            told, events = worker_run(breaker, level)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script must not see it
            other.append((*name, f"raised {error!r} into the script"))
            torch.set_grad_enabled(True)
            continue
        if told != plain:
            other.append((*name, "other bits"))
        elif breaker.seen.broke and not says_so(events) and name[2] not in QUIET and name[::2] not in UNNAMED:
            silent.append(name)
    return other, silent


@pytest.fixture
def armed_run(recording, as_it_was, monkeypatch):
    """Train in this process, armed, after ``damage(worker)``; returns the bits and what was written."""

    def run(damage):
        with as_it_was(), monkeypatch.context() as patch:
            worker = recording(on_anomaly="continue")
            sentinel = arm()
            damage(worker, patch)
            told = train()
            leave(sentinel)
            sentinel.capture.window.close()
            modes_off()
        return told, worker

    return run


def breaks(*_args, **_kwargs):
    raise BrokenError("broken on purpose")


@pytest.mark.parametrize(
    ("owner", "name", "probe"),
    [
        (Judge, "begin", "sentinel"), (Weights, "scalars", "sentinel"), (Losses, "seen", "sentinel"),
        (Tape, "add", None), (Window, "tape_call", "window"), (Window, "_kept", "window"),
        (Examiner, "examine", "sentinel"),
    ],
)  # fmt: skip
def test_a_broken_part_goes_dark_and_changes_nothing(owner, name, probe, armed_run):
    plain = train()
    told, worker = armed_run(lambda _, patch: patch.setattr(owner, name, breaks))
    assert told == plain
    dark = worker.events(ProbeDark)
    assert dark
    assert len({one.probe for one in dark}) == len(dark)
    assert all("broken on purpose" in one.reason for one in dark)
    assert probe is None or probe in {one.probe for one in dark}


def full_disk(_, patch):
    """The disk fills up in the middle of each line."""
    real = os.write

    def write(number, data):
        if len(data) > 20:
            real(number, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(number, data)

    patch.setattr(os, "write", write)


def vanished(worker, _):
    shutil.rmtree(worker.folder.path)


def no_descriptors(_, patch):
    patch.setattr(os, "open", lambda *_args: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))


@pytest.mark.parametrize("damage", [full_disk, vanished, no_descriptors])
def test_a_log_that_cannot_be_written_changes_nothing(damage, armed_run, capfd):
    plain = train()
    told, _ = armed_run(damage)
    assert told == plain
    assert capfd.readouterr().err.count("\n") <= 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_function_of_ours_may_break(part, worker_run):
    names = targets(worker_run)
    assert len(names) > 500
    assert {"replay", "evidence", "belongings", "births", "tape"} <= {name[0].split("/")[1] for name in names}
    other, silent = break_each(worker_run, names[part::PARTS])
    assert other == [], other
    assert silent == [], silent


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", ["module", "op"])
def test_each_function_of_a_level_may_break(level, worker_run):
    names = [name for name in targets(worker_run, level) if name[0].startswith("runtime/levels/")]
    assert len(names) > {"module": 15, "op": 25}[level], names
    other, silent = break_each(worker_run, names, level)
    assert other == [], other
    assert silent == [], silent
