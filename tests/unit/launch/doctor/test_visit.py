"""Doctor's launcher: what it starts and concludes, with stand-ins for its processes."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from nandiag.analysis.doctor import Check
from nandiag.analysis.doctor.host import Adapter
from nandiag.analysis.report import Origin, Report, Run, Verdict
from nandiag.launch.doctor import child, machine, trials, visit
from nandiag.launch.doctor.child import Done
from nandiag.launch.doctor.trials import Where
from nandiag.launch.doctor.visit import Asked
from nandiag.store.doctor import Examined, Gpu, Installation, SelfTest
from nandiag.store.writer import write_whole

CPU = Installation("3.12", "2.13.0", backends=("gloo",))
GPUS = Installation(
    "3.12", "2.13.0", cuda="13.0", backends=("gloo", "nccl"), gpus=(Gpu(0, "H100"), Gpu(1, "H100")), usable=2
)


@pytest.mark.parametrize(
    ("asked", "found", "expected"),
    [
        (Asked(), CPU, ("gloo", 2)),
        (Asked(nproc=3), CPU, ("gloo", 3)),
        (Asked(), GPUS, ("nccl", 2)),
        (Asked(nproc=1), GPUS, ("nccl", 1)),
        (Asked(nproc=4), GPUS, ("gloo", 4)),
        (Asked(backend="nccl", nproc=4), GPUS, ("nccl", 4)),
        (Asked(backend="gloo"), GPUS, ("gloo", 2)),
    ],
)
def test_backend_and_ranks_are_those_asked_for_or_what_the_machine_has(asked, found, expected):
    where = visit.chosen(asked, found)
    assert (where.backend, where.nproc) == expected


def test_gpus_that_torch_may_not_use_do_not_count():
    hidden = replace(GPUS, usable=1)
    assert visit.chosen(Asked(), hidden).nproc == 1
    assert visit._cannot(Where(2, "nccl"), hidden)[0].endswith("2 ranks, and torch sees 1 GPU")


@pytest.mark.parametrize(
    ("where", "found", "word"),
    [
        (Where(2, "nccl"), CPU, "built without nccl"),
        (Where(4, "nccl"), GPUS, "wants a GPU a rank"),
        (Where(2, "gloo"), Installation("3.12", trouble="ImportError"), "cannot be imported"),
    ],
)
def test_a_backend_that_cannot_work_is_said_and_not_tried(where, found, word, monkeypatch):
    monkeypatch.setattr(trials, "selftest", lambda _where: pytest.fail("was tried"))
    ((check,), _) = visit._tested(where, found)
    assert check.state == "wrong"
    assert word in check.seen


def stands_in(monkeypatch, *, code=0, err="", files=None, result=None):
    def run(words, _seconds, _added=None):
        folder = trials.Path(words[words.index("nandiag.runtime.selftest.worker") + 1])
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        if result is not None:
            write_whole(folder / "result.json", result)
        return Done(code, "", err)

    monkeypatch.setattr(child, "run", run)


def test_a_self_test_that_hangs_names_the_rank_that_got_least_far(monkeypatch):
    at = {"at-0": "all_to_all float32", "at-1": "all_reduce bfloat16", "at-2": "all_to_all float32"}
    stands_in(monkeypatch, code=None, files=at)
    ((check,), _) = trials.selftest(Where(3, "gloo"))
    assert check.state == "wrong"
    assert "did not end within 60 s, rank 1 at all_reduce bfloat16; ranks 0 and 2 at all_to_all float32" in check.seen


def test_a_self_test_that_fails_tells_the_first_error(monkeypatch):
    err = "Traceback\n[rank1]: RuntimeError: no interface\n[rank1]: more\ntorch...ChildFailedError: x\n"
    stands_in(monkeypatch, code=1, err=err, files={"at-1": "init_process_group"})
    ((check,), _) = trials.selftest(Where(2, "gloo"))
    assert check.seen == "failed, rank 1 at init_process_group: RuntimeError: no interface"


def test_a_result_is_read_whatever_the_exit_code(monkeypatch):
    stands_in(
        monkeypatch, code=1, result=SelfTest("gloo", (Examined(0, "n", "cpu", "cpu", latency=1e-4, bandwidth=1e9),))
    )
    assert [check.name for check in trials.selftest(Where(1, "gloo"))[0]] == ["speed", "clocks"]


@pytest.mark.parametrize(
    ("origin", "state"),
    [
        (Origin("nan", 1, (1,), 3, file="/t/planted.py", line=25), "ok"),
        (Origin("nan", 0, (0, 1), 3, file="/t/planted.py", line=25), "wrong"),
        (Origin("nan", 1, (1,), 4, file="/t/planted.py", line=25), "wrong"),
        (Origin("nan", 1, (1,), 3), "wrong"),
        (None, "wrong"),
    ],
)
def test_the_planted_nan_must_be_named_with_rank_step_and_file(origin, state):
    report = Report(
        run=Run(state="succeeded"), verdict=Verdict(origin is not None, "x", cause="division_by_zero", origin=origin)
    )
    assert trials.judged(report, 2).state == state


def test_a_planted_nan_that_never_came_is_no_fault_of_the_search():
    report = Report(run=Run(state="failed"), verdict=Verdict(anomaly=False, summary="ranks 0-1 raised RuntimeError"))
    check = trials.judged(report, 2)
    assert (check.state, check.mend) == ("wrong", "Mend what the self-test says first.")


def test_a_probe_that_fails_is_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(child, "run", lambda *_words: Done(1, "hello\n", "ImportError: libtorch.so\n"))
    found = trials.installation()
    assert found.torch is None
    assert "ImportError: libtorch.so" in found.trouble


def test_a_probe_may_come_after_noise(monkeypatch):
    out = 'a banner of site\n{"python": "3.12", "torch": "2.13.0", "backends": ["gloo"]}\n'
    monkeypatch.setattr(child, "run", lambda *_words: Done(0, out, ""))
    assert trials.installation().backends == ("gloo",)


def test_a_visit_puts_all_together(monkeypatch, tmp_path):
    measured = SelfTest("gloo", (Examined(0, "node17", "cpu", "cpu"),))
    monkeypatch.setattr(trials, "installation", lambda: CPU)
    monkeypatch.setattr(trials, "planted", lambda nproc: Check("planted NaN", "wrong", f"on {nproc}"))
    monkeypatch.setattr(trials, "selftest", lambda where: ([Check("all_reduce", "ok", where.backend)], measured))
    found = visit.visit(Asked(nproc=1, log_folder=tmp_path / "not" / "there"), {}, lambda _text: None)
    names = [check.name for check in found.checks]
    assert names[:2] == ["Python", "torch"]
    assert names[-2:] == ["all_reduce", "planted NaN"]
    assert found.checks[-1].seen == "on 1"
    assert found.wrong
    assert "node17" in found.hosts
    assert found.facts["torch"] == "2.13.0"


def test_a_child_is_ended_with_all_it_started_when_its_time_is_over(tmp_path):
    mark = tmp_path / "pid"
    code = (
        f"import subprocess,sys;p=subprocess.Popen(['sleep','60']);open({str(mark)!r},'w').write(str(p.pid));p.wait()"
    )
    began = time.monotonic()
    assert child.run(["-c", code], 3).code is None
    assert time.monotonic() - began < 30
    state = Path("/proc") / mark.read_text() / "stat"
    for _ in range(100):
        if not state.exists() or " Z " in state.read_text():
            return
        time.sleep(0.05)
    pytest.fail("it lives on")


def test_an_interrupt_ends_what_others_wait_for(tmp_path):
    code = "import time; time.sleep(60)"
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(child.run, ["-c", code], 60)
        while not child._running:
            time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt), child.ended_on_error():
            raise KeyboardInterrupt
    assert waiting.result().code == -9
    assert time.monotonic() - began < 30


def test_a_child_has_no_words_of_an_outer_launcher_and_finds_nandiag():
    environ = {"RANK": "3", "NANDIAG_FOLDER": "/x", "TORCHELASTIC_RUN_ID": "y", "PYTHONPATH": "/mine", "HOME": "/h"}
    kept = child.clean(environ)
    assert set(kept) == {"PYTHONPATH", "HOME", "OMP_NUM_THREADS"}
    assert kept["PYTHONPATH"].split(os.pathsep) == [str(child.ROOT), "/mine"]


def test_ports_are_read_from_the_kernel(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("InfiniBand\n")
    assert machine.adapters(tmp_path) == (Adapter("mlx5_0:1", "4: ACTIVE", "InfiniBand"),)
    assert machine.adapters(tmp_path / "none") == ()


def test_the_machine_is_looked_at_though_the_log_folder_is_not_there(tmp_path):
    seen = machine.look(tmp_path / "a" / "b")
    assert seen.writable is None
    assert seen.disk_free > 0
    assert seen.open_files > 0
    assert sys.platform != "linux" or "lo" in seen.interfaces
