"""What cannot be led nowhere is refused where the run goes on, and what stands for it leaves no trace."""

import contextlib
import cProfile
import logging
import os
import pstats
import queue
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.runtime.belongings.aside import Aside
from nandiag.runtime.belongings.bystanders import Bystanders
from tests.faults.acting import BAD, Net, looked, train
from tests.unit.runtime.belongings.written import SECONDS, lines


class Holder:
    """An object of the script's."""


def starts():
    subprocess.run(["true"], check=False)


def removes():
    Path("log").unlink(missing_ok=True)


def renames():
    with contextlib.suppress(FileNotFoundError):
        Path("log").replace("whole")


def makes():
    Path("made").mkdir(exist_ok=True)


def stores():
    with contextlib.closing(sqlite3.connect("data")) as data:
        data.execute("create table if not exists t (n)")


def temporary():
    with tempfile.TemporaryDirectory():
        pass


def forks():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def dumps(held=[]):  # noqa: B006 - open from the first call on
    if not held:
        held.append(open("array", "wb"))  # noqa: PTH123, SIM115
    np.ones(1).tofile(held[0])


@pytest.mark.parametrize("act", [starts, removes, renames, makes, stores, temporary, forks, dumps])
def test_what_cannot_be_led_nowhere_is_refused_where_the_run_goes_on(act, work, here):
    worker, done = work(), logging.makeLogRecord({"count": 0})  # of a library: it is not put back

    def acts():
        act()
        done.count += 1

    steps = train(acts)
    outcome, reason = looked(worker)
    assert outcome == "refused"
    assert "the run goes on" in reason
    assert done.count == steps


def test_work_for_other_threads_is_refused_where_the_run_goes_on(work):
    asked, taken = queue.Queue(), []
    eater = threading.Thread(target=lambda: taken.extend(iter(asked.get, None)), daemon=True)
    eater.start()
    worker = work()
    steps = train(lambda: asked.put(1))
    asked.put(None)
    eater.join(SECONDS)
    outcome, reason = looked(worker)
    assert (outcome, len(taken)) == ("refused", steps)
    assert "Queue.put" in reason


@pytest.mark.parametrize("name", ["add", "set", "compare_set", "append"])
def test_a_store_of_the_jobs_is_written_once(work, name):
    store, held = dist.PrefixStore("mine", dist.HashStore()), Holder()
    held.count = 0

    def acts():
        held.count += 1
        store.get("first")
        words = {"add": ("n", 1), "set": ("n", "1"), "compare_set": ("n", "", "1"), "append": ("n", "1")}[name]
        getattr(store, name)(*words)

    store.set("first", "1")
    worker = work()
    steps = train(acts)
    assert looked(worker)[0] == "refused"
    assert f"Store.{name}" in looked(worker)[1]
    assert store.get("n") == {"add": b"%d" % steps, "append": b"1" * steps}.get(name, b"1")
    assert held.count == steps


def test_an_archive_has_each_member_once_where_other_threads_run(work, here):
    worker, over = work(), threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    with zipfile.ZipFile("all.zip", "w") as archive:
        steps = train(lambda: archive.writestr(str(len(archive.namelist())), "1"))
        over.set()
        other.join()
        assert archive.namelist() == [str(step) for step in range(steps)]
    assert looked(worker)[0] == "refused"


def test_work_given_by_a_method_that_is_kept_is_refused_too(work):
    worker, asked = work(), queue.Queue()
    give = asked.put
    steps = train(lambda: give(1))
    assert looked(worker)[0] == "refused"
    assert asked.qsize() == steps


def test_what_was_kept_of_what_stood_for_a_function_does_its_work(here):
    aside = Aside(Bystanders())
    aside.begin()
    kept = os.write
    aside.close()
    number = os.open("log", os.O_WRONLY | os.O_CREAT)
    kept(number, b"line\n")
    os.close(number)
    assert kept is not os.write
    assert lines("log") == ["line"]


def test_a_pool_of_threads_is_refused_where_the_run_goes_on(work):
    worker, done = work(), queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        steps = train(lambda: pool.submit(done.put, 1).result(SECONDS))
    assert looked(worker)[0] == "refused"
    assert done.qsize() == steps


def test_where_the_run_ends_the_step_is_run_again(work, here):
    worker = work(on_anomaly="stop")
    with pytest.raises(SystemExit):
        train(starts)
    assert looked(worker)[0] == "found"


@pytest.mark.parametrize("way", ["trace", "profile", "cProfile"])
def test_the_scripts_own_tracer_sees_the_step_once(way, work):
    seen = queue.SimpleQueue()

    def look(frame, event, _):
        if event == "call" and frame.f_code is Net.forward.__code__:
            seen.put(1)
        return look

    worker, before = work(), (sys.gettrace(), sys.getprofile())
    profiler = cProfile.Profile()
    try:
        {"trace": sys.settrace, "profile": sys.setprofile, "cProfile": lambda _: profiler.enable()}[way](look)
        steps = train(lambda: None)
    finally:
        profiler.disable()
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert looked(worker)[0] == "found"
    calls = {key[2]: times[0] for key, times in pstats.Stats(profiler).stats.items()} if way == "cProfile" else {}
    assert calls.get("forward", seen.qsize()) == steps


def test_the_scripts_own_class_of_tensors_sees_no_call_of_ours(work):
    def steps(seen):
        class Mine(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                seen.append(getattr(func, "__name__", "?"))
                return super().__torch_function__(func, types, args, kwargs or {})

        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            loss = (model(torch.ones(3, 4).as_subclass(Mine)).square() * (step != BAD)).log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return seen

    plain = steps([])
    worker = work()
    assert steps([]) == plain
    assert looked(worker)[0] == "found"


def test_what_a_replay_made_says_nothing_as_it_goes(work, capsys):
    class Loud:
        def __del__(self):
            print("gone")  # noqa: T201 - scripts print

    def act():
        held.thing = Loud()

    held = Holder()
    worker = work()
    steps = train(act)
    assert looked(worker)[0] == "found"
    assert capsys.readouterr().out.count("gone") == steps - 1


def test_a_folder_can_be_removed_when_a_replay_is_over(work, here):
    worker = work()
    train(starts)
    assert looked(worker)[0] == "refused"
    Path("made").mkdir()
    shutil.rmtree("made")
    starts()
