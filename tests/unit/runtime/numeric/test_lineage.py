"""Whether what one line makes can come to another, by the names in the text."""

import pytest

from nandiag.events import Looked
from nandiag.runtime.evidence.heard import as_beside
from nandiag.runtime.numeric.lineage import leads


@pytest.fixture
def text(tmp_path):
    """Ask about the lines of a text that end in ``# made`` (a stack of them, innermost first) and ``# to``."""

    def ask(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        lines = list(enumerate(text.split("\n"), 1))
        return leads(*([(str(path), n) for n, one in lines if one.endswith(mark)] for mark in ("made", "to")))

    return ask


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("t = np.log(a)  # made\nu = t + 1\nx = use(u)  # to", True),
        ("x = use(np.log(a))  # made", None),
        ("for x in make(a):  # made\n    use(x)  # to", True),
        ("t[0] = np.log(a)  # made\nuse(t)  # to", True),
        ("xs.append(np.log(a))  # made\nfor x in xs:  # to\n    pass", True),
        ("b = t\nb[0] = np.log(a)  # made\nuse(t)  # to", True),
        ("fill(t, np.log(a))  # made\nuse(t)  # to", True),
        ("if a:\n    t = np.log(a)  # made\ndef f():\n    return t\nuse(f())  # to", True),
        ("print(np.log(a))  # made\nuse(a)  # to", False),
        ("len(np.log(a))  # made\nuse(a)  # to", False),
        ('setattr(box, "t", np.log(a))  # made\nuse(box.t)  # to', True),
        ("vars(box).update(t=np.log(a))  # made\nuse(box.t)  # to", None),
        ("exec('t[:] = np.log(a)', {'t': t, 'a': a})  # made\nuse(t)  # to", None),
        ("[xs.append(np.log(a)) for a in b]  # made\nuse(xs)  # to", None),
        ("import numpy as np\ne = np.log(a)  # made\nt = np.zeros(3)\nuse(t)  # to", False),
        ("try:\n    t = np.log(a)  # made\nfinally:\n    close()\nuse(t)  # to", True),
        ("self.t, u = np.log(a), 1  # made\nuse(b)  # to", None),
        ("def f(t):\n    return np.log(t)  # made\ndef g(t):\n    use(t)  # to", None),
        ("class A:\n    t = np.log(a)  # made\nuse(A)  # to", None),
        ("self.t = np.log(a)  # made\nuse(b)  # to", None),  # b may hold it
    ],
)
def test_names_lead_from_a_line_to_another(text, script, told):
    assert text(script) is told


def test_what_a_function_keeps_is_not_known(text):
    assert text("def f(a):\n    v = np.log(a)  # made\nr = f(a)  # made\nuse(b)  # to") is None


def test_a_line_of_numpys_that_a_further_run_finds_ran_before_the_origin():
    heard = as_beside(Looked("found", "tape", 3, source="op", facts={"heard": True}))
    assert heard.facts["beside"] is True
    assert "beside" not in as_beside(Looked("found", "replay", 3, source="op")).facts
