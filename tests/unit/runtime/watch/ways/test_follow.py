"""Where a script goes behind a bad answer is seen by the lines that it runs, whatever its guard is made of."""

import functools
import math
import signal
import sys

import pytest

from nandiag.runtime.watch.told.ways import follow
from nandiag.runtime.watch.told.ways.follow import Ways
from tests.unit.runtime.watch.ways.scripted import OFF, ON, STEP, WITHIN, Script


@pytest.fixture(autouse=True)
def worker(recording, monkeypatch):
    recording()
    monkeypatch.setattr(follow, "BOUNDARIES", {id(Script.way.__code__)})


PASSES = {
    "continue": """
for value in (1.0, 2.0, BAD):
    if not ask(value):
        continue
    value += 1
""",
    "round the update": """
for value in (1.0, 2.0, BAD):
    if ask(value):
        value += 1
""",
    "raised and caught": """
for value in (1.0, BAD):
    try:
        if not ask(value):
            raise ArithmeticError
        value += 1
    except ArithmeticError:
        pass
""",
    "suppressed": """
def check(value):
    if not ask(value):
        raise ArithmeticError
for value in (1.0, BAD):
    with contextlib.suppress(ArithmeticError):
        check(value)
""",
    "a table": """
done = []
table = {True: done.append, False: lambda value: None}
for value in (1.0, BAD):
    table[ask(value)](value)
""",
    "by a method of an object": """
class Guard:
    def __call__(self, value):
        return ask(value)
guard = Guard()
for value in (1.0, BAD):
    guard(value) and value + 1
""",
    "one line": """
for value in (1.0, BAD): ask(value)
""",
    "an endless loop over an iterator": """
values = iter((1.0, BAD))
while True:
    try:
        value = next(values)
    except StopIteration:
        break
    if not ask(value):
        continue
    value += 1
""",
    "an iterator in the condition": """
values = iter((1.0, BAD))
while (value := next(values, None)) is not None:
    if ask(value):
        value += 1
""",
    "the next batch by hand": """
values = iter((1.0, BAD))
value = next(values, None)
while value is not None:
    if not ask(value):
        value = next(values, None)
        continue
    value = next(values, None)
""",
    "a queue that is empty by then": """
import queue
todo = queue.Queue()
for value in (1.0, BAD):
    todo.put(value)
while not todo.empty():
    ask(todo.get())
""",
    "turns that are counted": """
step = 0
while step < 3:
    value = BAD if step == 2 else 1.0
    if not ask(value):
        step += 1
        continue
    step += 1
""",
    "what was done is counted": """
step = done = 0
while step < 3 and done < 10:
    value = BAD if step == 2 else 1.0
    if ask(value):
        done += 1
    step = step + 1
""",
    "epochs whose last batch is bad": """
for epoch in range(2):
    for value in (1.0, BAD):
        if not ask(value):
            continue
    epoch += 1
    if epoch > 5:
        break
""",
    "a last one that is left for another reason": """
for value in (1.0, BAD, 2.0):
    if value == 2.0:
        break
    ask(value)
""",
    "an else that says so": """
for value in (1.0, BAD):
    ask(value)
else:
    done = True
""",
    "a function that gives an answer back": """
def step(value):
    return bool(ask(value))
bad = 0
for value in (1.0, BAD):
    if not step(value):
        bad += 1
""",
    "a generator that asks": """
def good(values):
    for value in values:
        if ask(value):
            yield value
for value in good((1.0, 2.0, BAD)):
    value += 1
""",
    "an exit around all of it": """
def main():
    for value in (1.0, 2.0, BAD):
        if ask(value):
            value += 1
raise SystemExit(main())
""",
    "a generator that is gone through by count": """
def train():
    while True:
        value = next(values)
        if not ask(value):
            yield {"skipped": True}
            continue
        yield {"loss": value}
values = iter((1.0, 2.0, BAD, 2.0))
for number, one in enumerate(train()):
    if "skipped" in one:
        print("skipped", number)
    if number + 1 >= 3:
        break
""",
    "a generator that is asked for so many": """
def train():
    for value in (1.0, 2.0, BAD, 2.0):
        yield ask(value)
turns, done = train(), 0
while done < 3:
    good = next(turns)
    done += 1
""",
    "all of a list": """
for values in ((1.0, 2.0), (1.0, BAD, 2.0)):
    if all([ask(value) for value in values]):
        values = ()
""",
}
LEAVES = {
    "break": """
for value in (1.0, BAD, 2.0):
    if not ask(value):
        break
""",
    "return": """
for value in (1.0, BAD, 2.0):
    if not ask(value):
        return
""",
    "exit": """
for value in (1.0, BAD, 2.0):
    if not ask(value):
        raise SystemExit(2)
""",
    "an exit by what a loop has counted": """
def main():
    bad = 0
    for value in (1.0, BAD, BAD):
        bad = 0 if ask(value) else bad + 1
        if bad >= 2:
            break
    return bad
raise SystemExit(main())
""",
    "a generator that is left for what it gives": """
def train():
    while True:
        value = next(values)
        if not ask(value):
            yield None
            continue
        yield value
values = iter((1.0, 2.0, BAD, 2.0))
for number, one in enumerate(train()):
    if one is None:
        break
""",
    "a generator that is left for the answer it gives": """
def train():
    for value in (1.0, 2.0, BAD, 2.0):
        yield ask(value)
for good in train():
    if not good:
        break
""",
    "a count of bad ones": """
bad = 0
for value in (1.0, BAD, BAD, BAD, 2.0):
    if ask(value):
        bad = 0
    else:
        bad += 1
    if bad >= 3:
        break
""",
    "a flag behind": """
for value in (1.0, BAD, 2.0):
    stop = False
    if not ask(value):
        stop = True
    if stop:
        break
""",
    "a function's answer": """
def step(value):
    return bool(ask(value))
bad = 0
for value in (1.0, BAD, BAD, 2.0):
    bad += not step(value)
    if bad > 1:
        raise SystemExit(2)
""",
    "by the loop's own condition": """
value, step = 1.0, 0
while step < 9 and ask(value):
    step += 1
    value = BAD if step == 3 else 1.0
""",
    "a flag in the loop's condition": """
running, step = True, 0
while running:
    step += 1
    running = math.isfinite(BAD if step == 3 else 1.0) and ask(1.0) or ask(BAD)
""",
    "a flag that is set under a condition": """
done, step = False, 0
while not done:
    step += 1
    if not ask(BAD if step == 3 else 1.0):
        done = True
""",
    "bad ones counted in the loop's condition": """
bad, values = 0, iter((1.0, BAD, BAD, 1.0))
while bad < 2:
    value = next(values)
    if not ask(value):
        bad += 1
        continue
""",
    "the state of an object": """
class State:
    stop = False
def check(value):
    if not ask(value):
        State.stop = True
values = iter((1.0, BAD, 2.0))
while not State.stop:
    check(next(values))
""",
    "an attribute beside a count, set by a method": """
class Stopper:
    def __init__(self):
        self.stop = False
    def update(self, value):
        if not ask(value):
            self.stop = True
stopper, step = Stopper(), 0
while not stopper.stop and step < 9:
    stopper.update(BAD if step == 3 else 1.0)
    step += 1
""",
    "an event beside a count, set where nothing is followed": """
import threading
stop, step = threading.Event(), 0
def give_up():
    stop.set()
while not stop.is_set() and step < 9:
    if not ask(BAD if step == 3 else 1.0):
        give_up()
    step += 1
""",
    "attempts that have all failed": """
for value in (1.0, BAD, 2.0):
    for attempt in range(3):
        if ask(value):
            break
    else:
        raise SystemExit(2)
""",
    "out of two loops": """
for epoch in range(2):
    for value in (1.0, BAD, 2.0):
        if not ask(value):
            return
""",
}


@pytest.mark.parametrize("what", PASSES)
def test_what_goes_on_with_its_loop(what):
    assert Script(PASSES[what]).way() == ON


@pytest.mark.parametrize("what", LEAVES)
def test_what_leaves_its_loop(what):
    assert Script(LEAVES[what]).way() == OFF


def test_a_loop_that_is_left_within_one_that_is_not():
    text = """
for part in ((1.0, BAD, 2.0), (1.0, BAD, 2.0)):
    for value in part:
        if not ask(value):
            break
"""
    assert Script(text).way() == WITHIN


def test_without_a_loop_nothing_is_known():
    assert Script("ask(BAD)").way() is None


def test_the_script_sees_no_trace():
    seen = Script("""
import sys
for value in (1.0, BAD):
    if not ask(value):
        SEEN.append(sys.gettrace())
""")
    found = []
    names = {"BAD": math.nan, "SEEN": found}
    exec(compile(seen.text, seen.file, "exec"), names)  # noqa: S102 - a script
    names["script"](seen.ask)
    assert found == [None]
    seen.ways.known(STEP)
    assert sys.gettrace is follow._trace


def test_a_line_that_reads_bad_numbers_as_a_rule_ends_nothing_that_is_followed(monkeypatch):
    monkeypatch.setattr(follow, "_OFTEN", 2)
    text = """
for step in range(6):
    ask(BAD)
    if step == 5 and not ask(-BAD):
        break
"""
    assert Script(text).way() == OFF
    assert Script("for step in range(6):\n    ask(BAD)\n").way() is not None


def test_of_another_step_nothing_is_known():
    script = Script(PASSES["continue"])
    script.way()
    assert script.ways.known(STEP + 1) is None


def test_a_debuggers_trace_is_left_alone():
    def trace(*_):
        return None

    sys.settrace(trace)
    try:
        script = Script(PASSES["continue"])
        names = {"BAD": math.nan}
        exec(compile(script.text, script.file, "exec"), names)  # noqa: S102 - a script
        names["script"](script.ask)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert script.ways.known(STEP) is None


def test_it_ends_by_itself_and_what_is_not_seen_is_not_known(monkeypatch):
    monkeypatch.setattr(follow, "_MOST", 30)
    text = """
for value in (1.0, BAD):
    if not ask(value):
        for _ in range(100):
            value = 1.0
"""
    script = Script(text)
    assert script.way() is None
    assert script.ways._events <= 31


def test_what_fails_within_is_not_the_scripts(monkeypatch):
    script = Script(PASSES["continue"])

    monkeypatch.setattr(Ways, "adds", functools.partial(int, "no number"))
    assert script.way() is None
    assert script.asked == 3


def test_what_a_handler_of_signals_raises_in_it_reaches_the_script(monkeypatch):
    def handler(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        monkeypatch.setattr(Ways, "adds", lambda *_: handler(signal.SIGALRM, None))
        with pytest.raises(TimeoutError):
            Script(PASSES["continue"]).way()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sys.gettrace() is None


def test_no_variable_of_the_script_is_held(monkeypatch):
    script = Script(PASSES["continue"])
    script.way()
    assert not any(hasattr(one, "frame") for one in script.ways._followed)


def test_all_of_them_have_a_share_of_the_time(monkeypatch):
    monkeypatch.setattr(follow, "_FREE", 0.0)
    monkeypatch.setattr(follow, "_SHARE", 0.0)
    script = Script(PASSES["continue"])
    script.ways._events = 1
    assert script.way() is None
