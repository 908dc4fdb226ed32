"""Every function of ours in a worker is broken, one at a time: training ends with the same bits and somebody says so.

Nothing is listed here: what runs in a worker is found by running it, so that a new function is covered by itself. Left
out are those that stand in the place of torch's own, for there is nothing above them to catch what their first line
raises: what they call is broken call by call. And those that are sealed, as their text shows: one ``try``, no more.
"""

import errno
import os
import random
import resource
import shutil

import pytest

from nandiag.events import ProbeDark
from nandiag.runtime.look.losses import Losses
from nandiag.runtime.look.weights import Weights
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.loop.window import Window
from nandiag.runtime.watch.arm import arm
from nandiag.runtime.watch.judge import Judge
from tests.faults.breaking import Breaker, BrokenError, Seer, is_sealed, is_wrap, raises, takes_long
from tests.faults.training import in_children, leave, modes_off, train, warm_up, watched

# Each ends a context: broken at its first line nothing has been ended, and there is no second one to do it.
ENDS = {("runtime/look/finite.py", "__exit__"), ("runtime/tape/traceless.py", "undo_all")}
# It runs the script's own iterator: an error in it is the script's.
THEIRS = {("runtime/tape/wraps/one_call.py", "_listed")}
# A number less in a report that is right without it, an event that has nothing to say, or what may raise by design.
QUIET = {
    "stat_of", "last_words", "_stop", "__len__", "close", "local", "_wide", "in_float64", "_started_from", "number_of",
    "let_go",
}  # fmt: skip
# The parts of one large function of those, which have no names of their own.
UNNAMED = {
    ("runtime/evidence/explain.py", "<dictcomp>"),
    ("runtime/evidence/explain.py", "<genexpr>"),
    ("runtime/replay/update/again.py", "<genexpr>"),
}
PARTS = 4
RANDOM_CASES = 240


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


# ---------------------------------------------------------------------- each function in turn


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Tell of each function that runs in a worker which others of ours call it, and how often; by level."""
    warm_up()
    known = {}

    def found(level="step"):
        if level not in known:
            seer = Seer()

            def run():
                watched(tmp_path_factory.mktemp("seen"), profile=seer, level=level)
                calls = [
                    [name, caller, count] for name, all_ in seer.seen.inner.items() for caller, count in all_.items()
                ]
                return [calls, sorted(seer.seen.entries)]

            [(_, answer, why)] = in_children([("seen", run)])
            assert answer is not None, why
            known[level] = [(tuple(a), tuple(b), count) for a, b, count in answer[0]], set(map(tuple, answer[1]))
        return known[level]

    return found


def exempt(name):
    return name[::2] in ENDS | THEIRS or is_sealed(name) or is_wrap(name)


def broken(folder, breaker, level="step", damage=None):
    """Return a task that trains with one function broken."""

    def run():
        told, report = watched(folder, profile=breaker, level=level, damage=damage)
        return {"bits": told, "broke": breaker.seen.broke, **report}

    return run


def felt_and_silent(tasks):
    """Return the cases that the script felt, with how, and those of which nobody said anything."""
    [(_, plain, _)] = in_children([("plain", train)])
    felt, silent, reached = [], [], 0
    for name, told, why in in_children(tasks):
        if told is None or told["bits"] != plain:
            felt.append((name, why or "other bits"))
            continue
        reached += told["broke"]
        if told["broke"] and not told["says"]:
            silent.append(name)
    return felt, silent, reached


def quiet(name):
    return name[2] in QUIET or name[::2] in UNNAMED


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_function_of_ours_may_break(part, seen, tmp_path):
    calls, entries = seen()
    names = sorted({name for name, _, _ in calls} - entries)
    assert len(names) > 600
    assert {"replay", "evidence", "belongings", "births", "tape"} <= {name[0].split("/")[1] for name in names}
    names = [name for name in names if not exempt(name)][part::PARTS]
    tasks = [(name, broken(tmp_path / str(number), Breaker(name, raises))) for number, name in enumerate(names)]
    felt, silent, reached = felt_and_silent(tasks)
    assert felt == [], felt
    assert [name for name in silent if not quiet(name)] == []
    assert reached > 0.9 * len(names)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_is_called_where_the_script_is_next_may_break(seen, tmp_path):
    """What a wrap, a hook or a mode of ours calls: nothing else would catch it."""
    calls, entries = seen()
    edges = [(name, caller) for name, caller, _ in calls if caller in entries and not exempt(name)]
    assert len(edges) > 30
    tasks = [
        ((name, caller), broken(tmp_path / str(number), Breaker(name, raises, caller=caller)))
        for number, (name, caller) in enumerate(edges)
    ]
    felt, _, _ = felt_and_silent(tasks)
    assert felt == [], felt


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_function_of_ours_may_take_long(part, seen, tmp_path):
    calls, _ = seen()
    names = sorted({name for name, _, _ in calls})[part::PARTS]
    tasks = [(name, broken(tmp_path / str(number), Breaker(name, takes_long))) for number, name in enumerate(names)]
    felt, _, _ = felt_and_silent(tasks)
    assert felt == [], felt


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", ["module", "op"])
def test_each_function_of_a_level_may_break(level, seen, tmp_path):
    calls, entries = seen(level)
    found = {name for name, _, _ in calls if name[0].startswith("runtime/levels/")} - entries
    names = sorted(name for name in found if not exempt(name))
    assert len(names) > {"module": 15, "op": 25}[level], names
    tasks = [(name, broken(tmp_path / str(number), Breaker(name, raises), level)) for number, name in enumerate(names)]
    felt, silent, _ = felt_and_silent(tasks)
    assert felt == [], felt
    assert [name for name in silent if not quiet(name)] == []


# ---------------------------------------------------------------------- at random, and a log that fails beside it


def read_only(run):
    """No file can be opened for writing any more, as on a disk that was mounted anew."""
    real = os.open

    def opened(path, flags, *args, **kwargs):
        if str(path).startswith(str(run.path)) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *args, **kwargs)

    os.open = opened


def gone(run):
    shutil.rmtree(run.path)


def full(run):
    """The disk is full: each line is written up to its middle."""
    real = os.write

    def write(number, data):
        if len(data) > 20:
            real(number, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(number, data)

    os.write = write


def limited(run):
    """The file reached the size that a file may have: the system itself writes a part of a line."""
    size = max(path.stat().st_size for path in run.ranks.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 700, resource.RLIM_INFINITY))


def no_more_files(run):
    """Every descriptor is in use."""
    last = os.dup(0)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, last))


ERRORS = (BrokenError, MemoryError, RecursionError, KeyError, OSError, AttributeError, StopIteration, AssertionError)


def raising(kind):
    def harm(name):
        raise kind(name)

    return harm


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_any_call_of_ours_may_break_in_any_way_while_the_log_fails_too(seed, seen, tmp_path):
    calls, _ = seen()
    chosen = random.Random(seed)  # noqa: S311 - the same cases each time
    calls = [one for one in sorted(calls) if not exempt(one[0])]
    tasks = []
    for number in range(RANDOM_CASES // 3):
        name, caller, count = chosen.choice(calls)
        harm = chosen.choice([takes_long, *map(raising, ERRORS)])
        damage = chosen.choice([None, None, read_only, gone, full, limited, no_more_files])
        breaker = Breaker(name, harm, call=chosen.randrange(count), caller=caller)
        told = name, caller, getattr(damage, "__name__", "")
        tasks.append((told, broken(tmp_path / str(number), breaker, damage=damage)))
    felt, _, reached = felt_and_silent(tasks)
    assert felt == [], felt
    assert reached > 0.6 * len(tasks)
