"""What the script's own text says about the names in an expression."""

import sys

import pytest

from nandiag.events import Meaning
from nandiag.runtime.evidence.around import around
from nandiag.runtime.frames import stack

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")


def probe(*_given):
    """Return what is told around the call of this function."""
    return around(stack(sys._getframe(1))[0])


@pytest.fixture
def run(tmp_path):
    """Run the text of a script, which calls ``probe``, and return what it leaves in ``found``."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        space = {"probe": probe}
        exec(compile(text, str(path), "exec"), space)  # noqa: S102
        return space["found"]

    return run


def texts(found):
    return {one.name: one.text for one in found.names}


def test_a_name_assigned_before_and_what_it_is_made_of(run):
    found = run("def f(x):\n    z = x * 2\n    p = abs(z)\n    return probe(1 - p)\nfound = f(3 + 1)\n")
    assert texts(found) == {"p": "abs(z)", "z": "x * 2", "x": "3 + 1"}
    assert [one.inside for one in found.names] == [True, True, False]
    assert [one.line for one in found.names] == [3, 2, 5]


def test_what_a_caller_hands_in_is_told_with_its_place(run):
    given = "def g():\n    v = abs(-2)\n    return f(v, b=v + 1)\n"
    found = run(f"def f(a, *, b=0):\n    return probe(a, b)\n{given}found = g()\n")
    assert [(one.name, one.text, one.line, one.inside) for one in found.names] == [
        ("a", "abs(-2)", 4, False),
        ("b", "v + 1", 5, False),
    ]


def test_the_forward_of_a_module_is_called_by_the_module(run):
    text = (
        "class M:\n    def forward(self, x):\n        return probe(x)\n    def __call__(self, x):\n"
        "        return self.forward(x)\nfound = M()(abs(-1))\n"
    )
    assert texts(run(text)) == {"x": "abs(-1)"}


@pytest.mark.parametrize(
    "body",
    [
        "p = abs(x)\n    p = p + 1 if x else p\n    p += 1\n    return probe(p)",
        "p = abs(x)\n    x = 5\n    return probe(p)",
        "if x:\n        p = abs(x)\n    else:\n        p = 3\n    return probe(p)",
        "p = [x]\n    p[0] = 2\n    return probe(p)",
        "p = Tensor()\n    p.clamp_()\n    return probe(p)",
        "for p in [1]:\n        r = probe(p)\n    return r",
        "p = abs(x)\n    for _ in range(2):\n        r = probe(p)\n        p = r\n    return r",
    ],
)
def test_names_that_are_not_sure(run, body):
    found = run(f"class Tensor:\n    clamp_ = print\ndef f(x):\n    {body}\nfound = f(2)\n")
    assert "p" not in texts(found)


def test_an_expression_of_several_lines_in_one(run):
    found = run("y = 2\nx = 3\nfound = probe(\n    x\n    + y\n)\n")
    assert found.statement == "found = probe(x + y)"
    assert found.statement[slice(*found.column)] == "probe(x + y)"
    assert found.names == (Meaning("x", "3", found.names[0].file, 2), Meaning("y", "2", found.names[0].file, 1))


def test_an_expression_of_one_line_stays_as_it_stands(run):
    found = run("x = 3\nfound = max([\n    probe(x),\n], key=id)\n")
    assert (found.statement, found.column) == (None, None)


def test_what_is_done_with_the_result(run):
    found = run("def f(x):\n    e = probe(x)\n    s = (e, 1)\n    t = 3\n    return e\nfound = f(2)\n")
    assert found.uses == ("s = (e, 1)", "return e")


def test_a_file_that_cannot_be_read_says_nothing():
    space = {"probe": probe}
    exec(compile("found = probe(1)", "gone.py", "exec"), space)  # noqa: S102
    assert space["found"] is None
