"""What a call comes to is read off texts and modules: nothing of the script's runs, and it takes no long time."""

import ast
import sys
import time
import types
from importlib.machinery import SourceFileLoader

import pytest

from nandiag.runtime.frames import USER
from nandiag.runtime.watch.told.answers.by_text.passed_over import leads_on
from nandiag.runtime.watch.told.answers.by_text.trains import trains

TEXT = """
import torch

class Remote:
    def __getattr__(self, name):
        ASKED.append(name)
        raise AttributeError(name)

ASKED = []
remote = Remote()

def record(value):
    seen.append(value)

def update(loss):
    loss.backward()

remote(1)
record(1)
update(1)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    def load(text, name="__main__", **more):
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        module = types.ModuleType(name)
        module.__dict__.update(__file__=str(path), __loader__=SourceFileLoader(name, str(path)), **more)
        exec(compile(text.split("\nremote(1)")[0], str(path), "exec"), module.__dict__)  # noqa: S102 - it is this test's
        monkeypatch.setitem(sys.modules, name, module)
        calls = [one.value for one in ast.parse(text).body if isinstance(one, ast.Expr)]
        return module, str(path), [one for one in calls if isinstance(one, ast.Call)]

    return load


def test_functions_are_resolved_when_python_has_taken_the_scripts_file_off_its_module(script):
    module, path, calls = script(TEXT)
    del module.__file__
    assert [trains(one, path) for one in calls[1:]] == [False, True]


def test_nothing_of_the_scripts_is_run(script):
    module, path, calls = script(TEXT)
    assert trains(calls[0], path) is None
    assert module.ASKED == []


def test_many_helpers_of_many_calls_take_no_long_time(script):
    layers = [[f"f{depth}_{at}" for at in range(40)] for depth in range(4)]
    made = [f"def {name}(x):\n    return x.detach()\n" for name in layers[3]]
    for depth in (2, 1, 0):
        body = "\n".join(f"    {name}(x)" for name in layers[depth + 1])
        made += [f"def {name}(x):\n{body}\n" for name in layers[depth]]
    _, path, calls = script("".join(made) + "\nremote(1)\nf0_0(1)\n")
    began = time.process_time()
    assert trains(calls[1], path) is not True
    assert time.process_time() - began < 2.0


IN_A_LOOP = """
for k in range(24):
    value = measured(k)
    if not isfinite(value):
        continue
    rows.append(value)
"""


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        (IN_A_LOOP, False),
        (IN_A_LOOP.replace("rows.append(value)", "optimizer.step()"), True),
        ("for batch in data:" + IN_A_LOOP.replace("\n", "\n    ") + "\n    loss.backward()\n", True),
        ("def micro_losses():" + IN_A_LOOP.replace("\n", "\n    "), True),
    ],
)
def test_a_loop_of_the_script_in_which_nothing_trains_passes_over_no_loss(tmp_path, text, goes_on):
    path = tmp_path / "loop.py"
    path.write_text("def measured(k):\n    return k\n\nrows = []\n" + text, encoding="utf-8")
    line = next(number for number, one in enumerate(path.read_text().splitlines(), 1) if "isfinite" in one)
    frame = types.SimpleNamespace(file=str(path), line=line, kind=USER)
    assert leads_on([frame]) is goes_on
