"""What is called may be any object, and what it hangs on any expression: the text tells what that comes to."""

import sys
import types
from importlib.machinery import SourceFileLoader

import pytest

from nandiag.runtime.frames import USER
from nandiag.runtime.watch.told.answers.by_text.passed_over import leads_on

HEAD = """
import functools

ASKED = []

class Update:
    def __call__(self, loss):
        loss.backward()

class Forget:
    def __call__(self, loss):
        ASKED.append(loss)

class Loud:
    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)

class Around:
    def __init__(self, function):
        self.function = function

    def __call__(self, loss):
        return self.function(loss)

def named(loss):
    loss.backward()

def passed(loss):
    ASKED.append(loss)

def bare(function):
    def inner(*args):
        return function(*args)
    return inner

def wrapped(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

forget = Forget()
"""
OBJECTS = (
    "Update()",
    "functools.partial(Update(), 1)",
    "{'a': Update()}['a']",
    "Update().__call__",
    "Around(Update())",
    "Around(named)",
    "bare(named)",
    "wrapped(wrapped(named))",
    "functools.lru_cache(named)",
    "lambda loss: named(loss)",
    "functools.update_wrapper(Forget(), named)",
)
PICKS = (
    "named(loss) if isfinite(loss) else passed(loss)",
    "(named if isfinite(loss) else passed)(loss)",
    "isfinite(loss) and named(loss)",
    "isnan(loss) or named(loss)",
    "{True: named, False: passed}[bool(isfinite(loss))](loss)",
    "(passed, named)[int(isfinite(loss))](loss)",
    "act = named if isfinite(loss) else passed\n    act(loss)",
    "act = [passed, named][isfinite(loss)]\n    act(loss)",
    "good = isfinite(loss)\n    good and named(loss)",
    "match isfinite(loss):\n        case True:\n            named(loss)\n        case _:\n            passed(loss)",
    "(lambda: named(loss))() if isfinite(loss) else None",
)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    def load(text):
        path = tmp_path / "script.py"
        path.write_text(HEAD + text, encoding="utf-8")
        module = types.ModuleType("__main__")
        module.__dict__.update(__file__=str(path), __loader__=SourceFileLoader("__main__", str(path)), losses=())
        exec(compile(HEAD + text, str(path), "exec"), module.__dict__)  # noqa: S102 - it is this test's
        monkeypatch.setitem(sys.modules, "__main__", module)
        lines = (HEAD + text).splitlines()
        line = next(at for at, one in enumerate(lines, 1) if "isfinite(" in one or "isnan(" in one)
        return module, leads_on([types.SimpleNamespace(file=str(path), line=line, kind=USER)])

    return load


def guarded(update):
    return f"""
update = {update}
for loss in losses:
    if isfinite(loss):
        update(loss)
    else:
        forget(loss)
"""


@pytest.mark.parametrize("update", OBJECTS)
def test_what_an_object_is_called_for_is_found(asked, update):
    module, goes_on = asked(guarded(update))
    assert (goes_on, module.ASKED) == (True, [])


@pytest.mark.parametrize("other", ["Forget()", "Around(passed)", "bare(passed)", "wrapped(passed)", "Loud()"])
def test_an_object_that_trains_nothing_is_no_update(asked, other):
    module, goes_on = asked(guarded(other))
    assert (goes_on, module.ASKED) == (False, [])


@pytest.mark.parametrize("pick", PICKS)
def test_an_expression_may_pick_what_is_called(asked, pick):
    assert asked(f"\nfor loss in losses:\n    {pick}\n")[1] is True


@pytest.mark.parametrize("pick", [one.replace("named", "passed") for one in PICKS])
def test_one_that_picks_no_update_decides_nothing(asked, pick):
    assert asked(f"\nfor loss in losses:\n    {pick}\n")[1] is False


def test_a_number_that_is_picked_is_no_condition_of_its_line(asked):
    turn = "kept = loss if isfinite(loss) else 0\n    if kept:\n        continue\n    named(loss)"
    assert asked(f"\nfor loss in losses:\n    {turn}\n")[1] is True
