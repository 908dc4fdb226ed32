"""The statements that run behind one another with an expression's own."""

import ast
import sys

import pytest

from nandiag.events import Statement
from nandiag.runtime.evidence.around import around
from nandiag.runtime.evidence.around.block import beside
from nandiag.runtime.evidence.around.place import Place
from nandiag.runtime.frames import stack

TEXT = "def f(a, t):\n    n = a.norm()\n    e = torch.exp(\n        a / t)\n    s = e.sum(1)\n    return s.log(), n\n"


def told(text, within="f"):
    tree = ast.parse(text)
    scope = tree.body[0] if within else tree
    own = next(node for node in scope.body if isinstance(node, ast.Assign) and "exp" in ast.unparse(node))
    return beside(Place("train.py", (tree, *([scope] if within else []), own, own.value)))


def test_they_are_told_on_one_line_each_from_the_first_exponential_on():
    lines = (Statement(3, "e = torch.exp(a / t)"), Statement(5, "s = e.sum(1)"), Statement(6, "return (s.log(), n)"))
    assert told(TEXT) == (lines, (), None)


def test_names_that_are_read_elsewhere_in_the_function_are_told():
    text = "e = torch.exp(z)\nloss = e.sum().log()\nprint(loss)\ndef g():\n    return e\n"
    tree = ast.parse(text)
    block = ast.If(ast.Name("c", ast.Load()), tree.body[:2], [])
    ast.fix_missing_locations(block)
    tree.body[:2] = [block]
    own = block.body[0]
    assert beside(Place("train.py", (tree, block, own, own.value)))[1] == ("e", "loss")


@pytest.mark.parametrize(("loop", "names"), [("for x in xs", ("n", "s")), ("while True", ("n", "s")), ("if xs", ())])
def test_names_that_the_next_pass_of_a_loop_reads_are_told(loop, names):
    tree = ast.parse(f"{loop}:\n    e = torch.exp(x)\n    s = s * e\n    n += 1\n    out = s.log()\n")
    own = tree.body[0].body[0]
    assert beside(Place("train.py", (tree, tree.body[0], own, own.value)))[1] == names


def test_long_ones_or_many_are_not_told():
    assert told(TEXT + "    x = 0\n" * 30) == ((), (), None)
    assert told(TEXT + f"    x = {'a + ' * 90}a\n") == ((), (), None)
    plain = TEXT.replace("torch.exp", "torch.sin").replace("a.norm", "exp.norm").replace(".log()", ".cos()")
    assert told(plain + "    e = exp\n")[0] == ()


def test_where_a_logarithm_alone_is_taken_all_of_them_are_told():
    text = "def f(m, v, y):\n    e = (y - m) / v\n    size = torch.log(v)\n    return e + exp * size\n    e = exp\n"
    assert [one.line for one in told(text)[0]] == [2, 3, 4, 5]


CALLED = (
    "def exp(x):\n    return probe(x)\ndef score(a):\n    return exp(a)\n"
    "def f(z):\n    n = 1\n    pos = score(z)\n    return pos\n"
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")
@pytest.mark.parametrize(("more", "handed"), [("", "score"), ("print(score)\n", None)])
def test_of_a_function_that_hands_an_exponential_back_the_callers_statements_are_told(tmp_path, more, handed):
    file = tmp_path / "train.py"
    file.write_text(CALLED + "found = f(2)\n" + more)
    space = {"probe": lambda _: around(stack(sys._getframe(2))[0])}
    exec(compile(file.read_text(), str(file), "exec"), space)  # noqa: S102
    found = space["found"]
    assert found.handed == handed
    assert [one.line for one in found.block] == ([4, 7, 8] if handed else [4])


def test_what_made_a_factor_is_told_where_it_is_solved_with():
    tree = ast.parse("def f(k, y):\n    L, info = torch.linalg.cholesky_ex(k)\n    a = torch.cholesky_solve(y, L)\n")
    scope = tree.body[0]
    found = beside(Place("train.py", (tree, scope, scope.body[1], scope.body[1].value)))[0]
    assert found[0] == Statement(2, "L, info = torch.linalg.cholesky_ex(k)")


def test_what_made_eigenvalues_is_told_where_they_are_divided_by():
    tree = ast.parse("def f(z, c):\n    lam, u = torch.linalg.eigh(c)\n    return z @ u * lam.rsqrt()\n")
    scope = tree.body[0]
    found = beside(Place("train.py", (tree, scope, scope.body[1], scope.body[1].value)))[0]
    assert found[0] == Statement(2, "lam, u = torch.linalg.eigh(c)")
