"""Before the script: what is called after an import, which process is a rank, and whose lines a traceback shows."""

import importlib
import json
import signal
import sys
import threading

import pytest

from nandiag.events import Finished, Raised
from nandiag.runtime.inject import after_import, ending
from nandiag.runtime.inject import process as processes
from nandiag.runtime.inject.process import Kind, kind
from nandiag.runtime.recorder import RECORDER

# ---------------------------------------------------------------------- after an import


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that was not imported yet; returns its name."""
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "waited_for"
    sys.modules.pop("waited_for", None)
    after_import.forget()


def test_it_is_called_once_the_module_has_run(module):
    seen, path = [], list(sys.meta_path)
    after_import.after_import(module, lambda one: seen.append(one.value))
    assert seen == []
    assert module not in sys.modules
    imported = importlib.import_module(module)
    importlib.reload(imported)
    assert seen == [1]
    assert sys.meta_path == path
    assert imported.__spec__.loader.exec_module.__name__ == "exec_module"


def test_it_is_called_at_once_for_what_is_there(module):
    importlib.import_module(module)
    seen = []
    after_import.after_import(module, lambda one: seen.append(one.__name__))
    assert seen == [module]


def test_what_is_forgotten_is_not_called(module):
    seen, path = [], list(sys.meta_path)
    after_import.after_import(module, seen.append)
    after_import.forget()
    importlib.import_module(module)
    assert (seen, sys.meta_path) == ([], path)


def test_a_module_that_does_not_exist_fails_as_always(module):
    after_import.after_import("not_there_at_all", lambda one: None)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        importlib.import_module("not_there_at_all")


def test_a_module_that_raises_fails_as_always(module, tmp_path):
    (tmp_path / "waited_for.py").write_text("1 / 0")
    seen = []
    after_import.after_import(module, seen.append)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(module)
    assert seen == []


# ---------------------------------------------------------------------- which process


@pytest.fixture
def place(monkeypatch):
    def be(words=("python", "train.py"), **names):
        for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "NANDIAG_CLAIM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"NANDIAG_FOLDER": "/x", "NANDIAG_LAUNCHER": "torchrun", **names}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(processes.sys, "orig_argv", list(words))

    return be


def test_the_first_process_of_a_rank_is_its_worker(place):
    place(RANK="3")
    assert kind() is Kind.WORKER
    assert kind() is Kind.WORKER


@pytest.mark.parametrize(("launcher", "expected"), [("torchrun", Kind.HELPER), ("none", Kind.MAYBE)])
def test_a_child_of_a_rank_is_none(launcher, expected, place):
    place(RANK="3", NANDIAG_LAUNCHER=launcher)
    processes.settings.os.environ["NANDIAG_CLAIM"] = "1:/x/3/0"
    assert kind() is expected


def test_another_rank_and_another_attempt_are_workers_of_their_own(place):
    place(RANK="3", TORCHELASTIC_RESTART_COUNT="1", NANDIAG_CLAIM="1:/x/3/0")
    assert kind() is Kind.WORKER
    place(RANK="4", NANDIAG_CLAIM="1:/x/3/0")
    assert kind() is Kind.WORKER


def test_without_a_rank_the_first_process_is_alone_where_nobody_launches(place):
    place(NANDIAG_LAUNCHER="none")
    assert kind() is Kind.ALONE
    place(NANDIAG_LAUNCHER="none", NANDIAG_CLAIM="1:/x/None/0")
    assert kind() is Kind.MAYBE
    place()
    assert kind() is Kind.HELPER


@pytest.mark.parametrize(
    "words",
    [
        ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)"),
        ("python", "-c", "from multiprocessing.forkserver import main; main(1)"),
        ("python", "-m", "torch._inductor.compile_worker"),
    ],
)
def test_what_python_and_torch_start_for_themselves_is_no_rank(words, place):
    place(words, RANK="3")
    assert kind() is Kind.HELPER


# ---------------------------------------------------------------------- the end


@pytest.fixture
def fresh_ending(monkeypatch):
    monkeypatch.setattr(
        ending, "_state", {**dict.fromkeys(ending._state, False), "steps": 0, "shown": 0, "error_file": None}
    )
    monkeypatch.setattr(ending, "_closing", [])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def first():
    raise KeyError("first")


def script_that_raises():
    try:
        first()
    except KeyError as error:
        raise ValueError("second") from error


def caught(wrapped):
    try:
        wrapped()
    except ValueError as error:
        return error
    return None


def test_a_thread_that_is_stopped_brings_the_main_thread_to_its_end(fresh_ending, monkeypatch):
    woken = threading.Event()
    monkeypatch.setattr(ending, "_GRACE", 0.01)
    monkeypatch.setattr(ending.signal, "pthread_kill", lambda _thread, number: number == signal.SIGINT and woken.set())
    ending.stopped()
    assert not woken.wait(0.1)  # by the main thread itself: it ends by what it raises
    threading.Thread(target=ending.stopped).start()
    assert woken.wait(5)
    seen = []
    sys.excepthook = lambda *words: seen.append(words)
    ending.install()
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert seen == []


def test_the_hook_records_and_hands_on(recording, fresh_ending, tmp_path, monkeypatch):
    monkeypatch.setattr(ending, "_BEGINNINGS", ())  # no line of a script's is left, as when Python itself calls it
    worker, seen = recording(), []
    sys.excepthook = lambda *words: seen.append(words)
    path = tmp_path / "error.json"
    ending._state["error_file"] = None
    ending.install()
    ending._state["error_file"] = str(path)
    RECORDER.pulse(5, now=True)
    error = caught(script_that_raises)
    sys.excepthook(type(error), error, error.__traceback__)
    assert [words[1] for words in seen] == [error]
    (raised,) = worker.events(Raised)
    assert (raised.type, raised.message, raised.step) == ("ValueError", "second", 5)
    assert "KeyError: 'first'" in raised.traceback
    told = json.loads(path.read_text())["message"]
    assert told["message"] == "ValueError: second"
    ending.at_exit()
    assert worker.events(Finished) == []


def test_a_script_that_calls_the_hook_itself_goes_on(recording, fresh_ending):
    """For its log, say: nothing has ended."""
    worker, seen = recording(), []
    sys.excepthook = lambda *words: seen.append(words)
    ending.install()
    error = caught(script_that_raises)
    sys.excepthook(type(error), error, error.__traceback__)
    assert [words[1] for words in seen] == [error]
    assert worker.events(Raised) == []


def thread_ends_by(error):
    def ends():
        raise error

    thread = threading.Thread(target=ends)
    thread.start()
    thread.join(5)


def hand_on(words):
    sys.excepthook(words.exc_type, words.exc_value, words.exc_traceback)


def hook_that_fails(_):
    raise ValueError("of the hook itself")


@pytest.mark.parametrize("hook", [hand_on, hook_that_fails])
def test_what_ends_a_thread_ends_no_run(recording, fresh_ending, monkeypatch, hook):
    """The main one goes on, and may end of another error, or in order."""
    worker, seen = recording(), []
    sys.excepthook = lambda *words: seen.append(words)
    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.delattr(sys, "last_value", raising=False)
    ending.install()
    thread_ends_by(ConnectionError("logged"))
    assert len(seen) == 1
    assert worker.events(Raised) == []
    monkeypatch.setattr(ending, "_BEGINNINGS", ())
    error = caught(script_that_raises)
    sys.excepthook(type(error), error, error.__traceback__)
    assert [one.type for one in worker.events(Raised)] == ["ValueError"]


def test_what_ends_a_thread_whose_hook_ends_the_process_has_ended_the_run(recording, fresh_ending, monkeypatch):
    worker, left = recording(), []
    monkeypatch.setattr(ending.os, "_exit", left.append)
    monkeypatch.setattr(threading, "excepthook", lambda words: (hand_on(words), ending.os._exit(1)))
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(sys, "exit", sys.exit)
    ending.install()
    thread_ends_by(ConnectionError("the end"))
    assert left == [1]
    assert [one.message for one in worker.events(Raised)] == ["the end"]


def test_an_error_file_that_exists_is_the_scripts_own(recording, fresh_ending, tmp_path):
    recording()
    path = tmp_path / "error.json"
    path.write_text("mine")
    ending._state["error_file"] = str(path)
    error = caught(script_that_raises)
    ending._record(type(error), error, error.__traceback__)
    assert path.read_text() == "mine"


def test_an_exit_is_no_exception(recording, fresh_ending):
    worker = recording()
    ending._record(SystemExit, SystemExit(3), None)
    assert worker.events(Raised) == []


def test_an_interruption_is_recorded_and_is_no_failure_to_elastic(recording, fresh_ending, tmp_path):
    worker = recording()
    ending._state["error_file"] = str(tmp_path / "error.json")
    ending._record(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [event.type for event in worker.events(Raised)] == ["KeyboardInterrupt"]
    assert not (tmp_path / "error.json").exists()


def test_the_last_words(recording, fresh_ending, monkeypatch):
    worker = recording()
    monkeypatch.delattr(sys, "last_value", raising=False)
    ending.on_exit(lambda: Finished(steps=7, skips=1, last_finite_step=6))
    ending.at_exit()
    assert worker.events(Finished) == [Finished(steps=7, skips=1, last_finite_step=6)]


def test_a_probe_that_fails_in_its_last_words_is_no_failure_of_the_script(recording, fresh_ending, monkeypatch):
    recording()
    monkeypatch.delattr(sys, "last_value", raising=False)
    ending.on_exit(lambda: 1 / 0)
    ending.at_exit()


def test_all_that_wait_for_a_module_are_called(tmp_path, monkeypatch):
    (tmp_path / "waited_for.py").write_text("there = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    called = []
    for name in ("first", "second"):
        after_import.after_import("waited_for", lambda module, name=name: called.append((name, module.there)))
    importlib.import_module("waited_for")
    assert called == [("first", True), ("second", True)]
