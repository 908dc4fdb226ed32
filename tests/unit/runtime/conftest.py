"""A worker inside pytest: the runtime armed in this process, its events in a folder of the test, then all put back.

Arming replaces functions of torch for good, as it should in a worker. Here what it replaced is put back by comparing
the namespaces that it may touch before and after; a test holds that list complete.
"""

import contextlib
import functools
import gc
import importlib
import os
import random
import sys
import threading
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as sharded
from torch.amp.grad_scaler import GradScaler
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from nandiag.events import Harm, Looked, decode
from nandiag.runtime import anomaly_mode
from nandiag.runtime import names as module_names
from nandiag.runtime.belongings import bystanders
from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.frames import BOUNDARIES
from nandiag.runtime.inject import after_import, ending
from nandiag.runtime.numeric.warned import HEARD
from nandiag.runtime.recorder import RECORDER, Recorder
from nandiag.runtime.replay import mended
from nandiag.runtime.watch.arm import arm
from nandiag.runtime.watch.told.ways import follow
from nandiag.settings import Place, Settings
from nandiag.store.layout import RunFolder

TOUCHED = (
    torch, torch.autograd, torch.func, torch.Tensor, torch.autograd.Function, torch.nn.Module, torch.nn.utils,
    torch.nn.parallel.DistributedDataParallel, torch.optim.Optimizer, GradScaler, dataloader._BaseDataLoaderIter,
    torch.optim.lr_scheduler.LRScheduler, torch.cuda, torch.cuda.graphs, torch.cuda.CUDAGraph,
    dist, dist.distributed_c10d, functional, warnings, optimizers, torch.utils, threading.Thread,
    sharded.state_dict_loader, sharded.state_dict_saver, np, np.errstate,
    fetch._MapDatasetFetcher, torch.jit, torch._C.ScriptFunction, torch._C.ScriptMethod, saved_tensors_hooks,
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def what_the_first_optimizer_imports():
    """Modules are found through the garbage collector: these are there before a file's tests, and out of its sight."""
    importlib.import_module("torch._dynamo")
    # Dynamo remembers numpy's functions by their ids: of wraps, which a test takes back, others may have these later.
    importlib.import_module("torch._dynamo.trace_rules").is_numpy(np.sin)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tensors of a few numbers gain nothing from threads, and on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_script(request):
    """The script of a test is its own file: all the other tests that pytest has read are no part of it.

    Else each replay would keep what some hundred files hold, and put it back.
    """
    names = [name for name in sys.modules if name.startswith("tests.") and ".test_" in name]
    others = {name: sys.modules.pop(name) for name in names if name != request.module.__name__}
    yield
    sys.modules.update(others)


@pytest.fixture(autouse=True)
def distributions_that_check(monkeypatch):
    """To compile anything torch has no distribution check what it is given from then on: not in the tests to come."""
    checked = torch.distributions.Distribution
    monkeypatch.setattr(checked, "_validate_args", checked._validate_args)


@pytest.fixture(autouse=True)
def no_strangers_of_the_runner(monkeypatch):
    """A thread that pytest-xdist has beside the tests is none of a script's."""
    ours = bystanders.is_ours
    monkeypatch.setattr(bystanders, "is_ours", lambda name: ours(name) or f"{os.sep}execnet{os.sep}" in name)


@pytest.fixture
def next_places():
    """Asked for by tests of where a step goes bad next."""


@pytest.fixture(autouse=True)
def one_replay_a_harm(request, monkeypatch):
    """What is tested of a replay is tested of one: further runs, that look for the next place, have their own."""
    if "next_places" not in request.fixturenames:
        monkeypatch.setattr(mended, "_MOST", 0)


def call_while_there(reference):
    if (method := reference()) is not None:
        method()


@pytest.fixture(autouse=True)
def forks_that_keep_nothing_alive(monkeypatch):
    """What is to be done in a forked child is kept as long as the process: all that earlier tests armed, else."""
    register = os.register_at_fork

    def weakly(**words):
        method = words.get("after_in_child")
        if hasattr(method, "__self__"):
            words["after_in_child"] = functools.partial(call_while_there, weakref.WeakMethod(method))
        register(**words)

    monkeypatch.setattr(os, "register_at_fork", weakly)


@pytest.fixture(autouse=True)
def seeded():
    """Each test begins from the same generators and leaves them as it found them."""
    before = torch.get_rng_state(), random.getstate()
    torch.manual_seed(0)
    random.seed(0)
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])


@contextlib.contextmanager
def unheard():
    """Take what listens to the log off the one stream of all tests: a thousand of these are too deep to print."""
    streams = [(one, vars(one).get("write")) for one in (sys.stdout, sys.stderr)]
    try:
        yield
    finally:
        for stream, write in streams:
            vars(stream).pop("write", None)
            if write is not None:
                stream.write = write


@contextlib.contextmanager
def put_back():
    """Undo what arming does to torch, to the streams and to our own state."""
    with unheard(), torchs_own():
        yield


def _follow_no_more():
    """A test that ends soon behind a bad answer would have the next ones followed, and what they trace refused."""
    following = getattr(follow._trace(), "__self__", None)
    if isinstance(following, follow.Ways):
        following.end()


@contextlib.contextmanager
def torchs_own():
    """Undo what arming does to torch and to our own state."""
    names = [dict(vars(owner)) for owner in TOUCHED]
    errors = np.geterr(), np.geterrcall()
    hooks = [dict(one) for one in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)]
    state, boundaries, listeners = (
        dict(ending._state),
        set(BOUNDARIES),
        (list(RING.listeners), list(RING.ended), list(RING.handing)),
    )
    try:
        yield
    finally:
        _follow_no_more()
        for owner, before in zip(TOUCHED, names, strict=True):
            now = dict(vars(owner))
            for name, value in before.items():
                if now.get(name) is not value:
                    setattr(owner, name, value)
        for kept, before in zip(
            (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks), hooks, strict=True
        ):
            kept.clear()
            kept.update(before)
        np.seterr(**errors[0])
        np.seterrcall(errors[1])
        while torch._C._len_torch_function_stack():  # one that a failed test left there would fail those to come
            torch._C._pop_torch_function_stack()
        after_import.forget()
        HEARD.clear()  # what numpy complained of in one test would be the reason in another
        module_names._called.clear()  # else what a test froze, so that it is not found, is found by this
        RING.listeners[:], RING.ended[:], RING.handing[:] = listeners
        RING.forget()  # a test destroys its group by torch's own call, after ours is taken away
        ending._state.update(state)
        for waiting in (ending._closing, ending._raising, ending._leaving, ending._cutting, ending._exiting):
            waiting.clear()
        anomaly_mode.SUPPORT.release(anomaly_mode._RUN)
        BOUNDARIES.clear()
        BOUNDARIES.update(boundaries)
        renew_recorder()


def renew_recorder():
    """Give the one recorder of the process the state of a new one: everybody holds the object itself."""
    if RECORDER._writer is not None:
        RECORDER._writer.close()
    vars(RECORDER).update(vars(Recorder()))


class Worker:
    """An armed process: its sentinel, its capture, and what it has written so far."""

    def __init__(self, folder, sentinel):
        self.folder = folder
        self.sentinel = sentinel
        self.capture = sentinel.capture

    def events(self, *kinds):
        paths = sorted(self.folder.ranks.glob("*.jsonl"))
        found = [decode(line).event for path in paths for line in path.read_text().splitlines()]
        return [event for event in found if not kinds or isinstance(event, kinds)]

    @property
    def harms(self):
        return self.events(Harm)

    @property
    def looked(self):
        return self.events(Looked)


@pytest.fixture
def recording(tmp_path):
    """The recorder of this process, attached as rank 0 to a run folder of the test; ``recording(**settings)``."""
    folder = RunFolder.at(tmp_path / "run")
    folder.make()

    def start(*, attach=True, **options):
        renew_recorder()
        RECORDER.configure(Settings(folder=str(folder.path), run_id="test", **options), "site")
        if attach:
            RECORDER.attach(Place(rank=0, world_size=1, local_rank=0, node_rank=0, attempt=0))
        return Worker(folder, SimpleNamespace(capture=None))

    yield start
    renew_recorder()


@pytest.fixture
def work(recording):
    """Arm this process: ``work(on_anomaly="continue")`` returns a :class:`Worker`."""
    armed = []
    with put_back():

        def start(*, on_anomaly="continue", **options):
            worker = recording(on_anomaly=on_anomaly, **options)
            worker.sentinel = arm()
            worker.capture = worker.sentinel.capture
            armed.append(worker)
            return worker

        yield start
        for worker in armed:
            worker.sentinel.looker.live.stop()
            worker.capture.window.close()
            worker.capture.training()
        armed.clear()
    gc.collect()  # the modules of this test would be found, and watched, by those to come


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def as_it_was():
    """The context that undoes an arming, for tests of this fixture itself."""
    return put_back


@pytest.fixture
def touched():
    """Whose attributes arming replaces."""
    return TOUCHED


@pytest.fixture
def silent():
    """numpy as a script has it that silenced it for good."""
    HEARD.clear()
    before = np.seterr(all="ignore")
    yield
    np.seterr(**before)  # what arming made of it is put back before
    HEARD.clear()
