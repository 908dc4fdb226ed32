"""Which of the places that numpy complained of began it, and which went on with what was bad."""

import math
import re
import runpy
import sys
import weakref

import numpy as np
import pytest

from nandiag.runtime.frames import Frame, places
from nandiag.runtime.numeric.ear import words_of
from nandiag.runtime.numeric.fed import began, is_fed


@pytest.fixture
def lines(tmp_path):
    """Run the body of a function of ``w``, which ends in a 0; return the lines of it that began it."""

    def ask(body):
        path = tmp_path / "script.py"
        path.write_text("import numpy as np\ndef f(w, box):\n" + "".join(f"    {line}\n" for line in body.split("\n")))
        names, found = runpy.run_path(str(path)), []

        class Log:
            def write(self, line):
                frames = [Frame._make(one) for one in places(sys._getframe(1), 8)[0]]
                frame = next(one for one in frames if one.file == str(path))
                found.append((frame.line - 2, frame, is_fed(words_of(line), sys._getframe(1))))

        with np.errstate(all="log", under="ignore", call=Log()):
            names["f"](np.array([1.0, 2.0, 0.0]), type("Box", (), {})())
        return began(found)

    return ask


@pytest.mark.parametrize(
    "body",
    [
        "f = np.log10(w)\nreturn (f - f.mean(0)) / 10",
        "f = np.log10(w)\nreturn (f - f.mean()) / f.std()",
        "f = np.log10(w)\nreturn (f - np.mean(f)) / np.std(f)",
        "f = np.log10(w)\nreturn (f - f.min()) / (f.max() - f.min())",
        "e = np.exp(1000 * w)\nreturn e / e.sum()",
        "f = np.log(w * [0, 1, 1])\nreturn np.diff(f[::-1])",
        "f = np.log(w * [0, 1, 1])\nreturn f[2:] - f[:1]",
        "return np.diff(np.log(w * [1, 0, 0]))",
        "return np.log(w) - np.log(w).mean()",
        "return np.exp(1000 * w) / np.exp(1000 * w).sum()",
        "box.f = 1 / w\nreturn box.f - box.f.max()",
        "f = np.log(w)\nd = {'x': f}\nreturn d['x'] - d['x'].min()",
        "f = np.log(w)\nf -= f.mean()\nf /= f.std()\nreturn f",
        "m = w.mean()\ns = np.log(w[2])\nreturn (s - s) * m",
        "mask = np.full(3, -np.inf)\nb = mask + (w - 1) / (w - 1)\nreturn b - b",
    ],
)
def test_what_goes_on_with_what_is_bad_did_not_begin_it(lines, body):
    text = body.split("\n")
    first = next(one for one in text if re.search(r"log|exp|/ \(?w", one))
    assert [text[one - 1] for one in lines(body)] == [first]


@pytest.mark.parametrize(
    "body",
    [
        "f = np.log(w)\nf = np.where(np.isinf(f), 0, f)\nreturn (w - w) / (w - w)",
        "f = np.log(w)\nreturn np.where(np.isinf(f), 0, f) / w",
        "f = np.log(w)\nreturn f[:2] / w[1:]",
        "x = w / 0\nreturn np.log(w) + x",
        "x = w / w\nw /= w[0] - w[0]\nreturn x",
        "x = 1 / w\nnp.log(w, w)\nreturn x",
        "x = 1 / w\nnp.log(w, out=w)\nreturn x",
        "return 1 / w + np.log(w)",
    ],
)
def test_of_two_that_are_given_finite_values_both_did(lines, body):
    assert len(set(lines(body))) + ("\n" not in body) == 2


def test_where_all_were_given_what_is_bad_all_are_left(lines):
    assert lines("v = np.array([np.inf, 1])\na = v - v[0]\nb = v * 0\nreturn a + b") == [2, 3]


class Large:
    """Stands for a batch, or a loss with its graph."""


def test_a_function_that_numpy_complains_in_holds_nothing_longer_for_that():
    def goes_on():
        batch, values = Large(), np.array([1.0, math.inf])
        gone = weakref.ref(batch)
        assert is_fed("invalid value encountered in divide", sys._getframe()) is False
        del batch
        return gone() is None, values

    assert goes_on()[0]


def test_names_that_the_script_holds_itself_stay_there():
    def goes_on():
        batch, mine = Large(), locals()
        is_fed("invalid value encountered in divide", sys._getframe())
        return mine["batch"] is batch

    assert goes_on()
