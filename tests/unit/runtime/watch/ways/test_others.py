"""What else may trace, raise or count frames while the script's lines are followed is the script's own."""

import linecache
import math
import signal
import sys

import pytest

from nandiag.runtime.watch.told.ways import follow
from nandiag.runtime.watch.told.ways.follow import Ways
from tests.unit.runtime.watch.ways.scripted import Script


@pytest.fixture(autouse=True)
def worker(recording, monkeypatch):
    recording()
    monkeypatch.setattr(follow, "BOUNDARIES", {id(Script.way.__code__), id(run.__code__)})


def run(text, **names):
    """Run a script's text, with ``names``; returns it and what it put into ``found``."""
    script, found = Script(text), []
    names = {"BAD": math.nan, "found": found, "sys": sys, **names}
    exec(compile(script.text, script.file, "exec"), names)  # noqa: S102 - a script
    try:
        names["script"](script.ask)
    finally:
        sys.settrace(None)
    return script, found


@pytest.mark.parametrize("takes", ["sys.settrace(None)", "sys.settrace(lambda *_: None)", "deep()"])
def test_where_others_take_the_trace_away_nothing_is_known(takes, monkeypatch):
    monkeypatch.setattr(follow, "_is_deep", lambda most: False)
    text = f"""
def deep():
    try:
        deep()
    except RecursionError:
        pass
for value in (1.0, BAD):
    if not ask(value):
        {takes}
        continue
"""
    script, _ = run(text)
    assert script.ways.known(7) is None


def test_a_trace_of_the_scripts_own_is_seen_by_it():
    text = """
def trace(*_):
    return None
for value in (1.0, BAD):
    if not ask(value):
        before = sys.gettrace()
        sys.settrace(trace)
        found.append((before, sys.gettrace() is trace))
        sys.settrace(before)
        found.append(sys.gettrace())
"""
    assert run(text)[1] == [(None, True), None]


def test_a_script_may_go_as_deep_as_without():
    text = """
def deep(at=0):
    try:
        return deep(at + 1)
    except RecursionError:
        return at
for value in (1.0, BAD):
    if not ask(value):
        found.append(deep())
    else:
        found.append(deep())
"""
    _, (plain, followed) = run(text)
    assert followed == plain


def test_a_generator_that_is_let_be_collects_nothing_for_others():
    text = """
def losses():
    for value in (BAD, 1.0):
        if not ask(value):
            yield None
            for _ in range(100):
                pass
        else:
            yield value
for loss in losses():
    if loss is None:
        end()
        sys.settrace(lambda *_: None)
sys.settrace(None)
"""
    kept = []
    script = Script(text)
    names = {"BAD": math.nan, "sys": sys, "end": lambda: (script.ways.end(), kept.append(len(script.ways.path)))}
    exec(compile(script.text, script.file, "exec"), names)  # noqa: S102 - a script
    names["script"](script.ask)
    assert len(script.ways.path) == kept[0]


class LateError(Exception):
    """An error of the script's own."""


def test_what_a_handler_that_has_gone_raises_reaches_the_script(monkeypatch):
    file = "/scripts/of/handler.py"
    text = "def handler(number, frame):\n    signal.signal(number, signal.SIG_DFL)\n    raise ArithmeticError\n"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names = {"signal": signal}
    exec(compile(text, file, "exec"), names)  # noqa: S102 - a script
    before = signal.getsignal(signal.SIGUSR2)
    try:
        monkeypatch.setattr(Ways, "adds", lambda *_: names["handler"](signal.SIGUSR2, None))
        with pytest.raises(ArithmeticError):
            run("for value in (1.0, BAD):\n    if not ask(value):\n        continue\n")
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_what_another_thread_raises_in_it_reaches_the_script(monkeypatch):
    def adds(*_):
        raise LateError

    monkeypatch.setattr(Ways, "adds", adds)
    with pytest.raises(LateError):
        run("for value in (1.0, BAD):\n    if not ask(value):\n        continue\n")


def test_lines_that_read_bad_numbers_are_counted_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(follow, "_LINES", 4)
    ways = Ways()
    for at in range(9):
        names = {"sys": sys}
        exec(compile("frame = sys._getframe()", f"/scripts/of/{at}.py", "exec"), names)  # noqa: S102 - a script
        ways._is_usual(names["frame"])
    assert len(ways._read) == 4
