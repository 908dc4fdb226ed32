"""Whether what numpy makes on a line ends in its own function, by the text."""

import runpy
import sys

import numpy as np
import pytest

from nandiag.runtime.frames import Frame, places
from nandiag.runtime.numeric.ended import ends


@pytest.fixture
def told(tmp_path):
    """Run the body of a function of ``a``; ask of each place that numpy complained of."""

    def ask(body):
        path = tmp_path / "script.py"
        lines = "".join(f"\n    {line}" for line in body.split("\n"))
        path.write_text(f"import numpy as np\ndef f(a, box, out):{lines}\n")
        names, found = runpy.run_path(str(path)), []

        class Log:
            def write(self, _line):
                found.append([Frame._make(one) for one in places(sys._getframe(1), 8)[0]])

        with np.errstate(all="log", call=Log()):
            result = names["f"](np.zeros(3), type("Box", (), {})(), [])
            list(result) if hasattr(result, "__next__") else None
        return [ends(one) for one in found]

    return ask


@pytest.mark.parametrize(
    "body",
    [
        "s = np.log(a)\nreturn a",
        "s = np.log(a)\nprint('lowest', s.min())\nreturn a",
        "s = 20 * np.log10(np.abs(a).max())\nyield a",
        "s = np.log(a)\nif np.isinf(s).any():\n    a = a + 1\nreturn a",
        "s = np.log(a)\nlow = s.min()\nassert low\nreturn a",
        "print(np.log(a).min())\nreturn a",
        "s = 1 / a\nbox.s = np.nan_to_num(s, posinf=0)\nreturn box",
        "s = np.nan_to_num(1 / a)\nreturn s",
        "s = 1 / a\nreturn np.where(np.isfinite(s), s, 0)",
        "s = np.log(a)\ns[s < 0] = 0\nreturn a",
        "s = (1 / a).clip(0, 1)\nreturn a",
        "s = np.divide(1, a)\nreturn a",
        "s = np.add.reduce(1 / a, 0)\nreturn a",
    ],
)
def test_what_is_asked_of_or_made_finite_ends(told, body):
    assert told(body) == [True]


@pytest.mark.parametrize(
    "body",
    [
        "return np.log(a)",
        "s = np.log(a)\nt = s + 1\nreturn t",
        "s = np.log(a)\nyield s",
        "box.s = np.log(a)",
        "box.s, t = np.log(a), 1",
        "out.append(np.log(a))",
        "s = np.log(a)\nout.append(s)",
        "s = np.log(a)\nt = box.__setattr__('s', s)",
        "s = np.log(a)\nsetattr(box, 's', s)",
        "s = np.log(a)\nfor one in s:\n    out.append(one)",
        "s = np.log(a)\nout[:] = s",
        "s = np.log(a)\na += s",
        "s = np.log(a)\ndef g():\n    return s\nreturn g",
        "s = np.log(a)\nbox.g = lambda: s",
        "s = np.log(a)\nreturn locals()",
        "global s\ns = np.log(a)",
        "s = np.log(a, out=a)\nreturn a",
        "s = np.log(a, a)\nreturn a",
        "s = np.divide(1, a, a)\nreturn a",
        "s = np.add.reduce(1 / a[None], 0, None, a)\nreturn a",
        "s = np.cumsum(1 / a, 0, None, a)\nreturn a",
        "s = np.log(*[a, a])\nreturn a",
        "s = np.log(a, **{'out': a})\nreturn a",
        "np.log(a, out=a)\nreturn a",
        "a /= a\nreturn a",
        "v = a\nv /= v\nreturn a",
        "s = np.log(a)\nreturn np.where(np.isnan(s), 0, s)",
    ],
)
def test_what_may_go_on_does_not_end(told, body):
    assert told(body) == [False]
