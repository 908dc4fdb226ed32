"""The statements that run behind one another with an expression's own."""

import ast

from nandiag.events import Statement
from nandiag.runtime.evidence.around.block import beside
from nandiag.runtime.evidence.around.place import Place

TEXT = "def f(a, t):\n    n = a.norm()\n    e = torch.exp(\n        a / t)\n    s = e.sum(1)\n    return s.log(), n\n"


def told(text, within="f"):
    tree = ast.parse(text)
    scope = tree.body[0] if within else tree
    own = next(node for node in scope.body if isinstance(node, ast.Assign) and "exp" in ast.unparse(node))
    return beside(Place("train.py", (tree, *([scope] if within else []), own, own.value)))


def test_they_are_told_on_one_line_each_from_the_first_exponential_on():
    lines = (Statement(3, "e = torch.exp(a / t)"), Statement(5, "s = e.sum(1)"), Statement(6, "return (s.log(), n)"))
    assert told(TEXT) == (lines, ())


def test_names_that_are_read_elsewhere_in_the_function_are_told():
    text = "e = torch.exp(z)\nloss = e.sum().log()\nprint(loss)\ndef g():\n    return e\n"
    tree = ast.parse(text)
    block = ast.If(ast.Name("c", ast.Load()), tree.body[:2], [])
    ast.fix_missing_locations(block)
    tree.body[:2] = [block]
    own = block.body[0]
    assert beside(Place("train.py", (tree, block, own, own.value)))[1] == ("e", "loss")


def test_long_ones_or_many_are_not_told():
    assert told(TEXT + "    x = 0\n" * 30) == ((), ())
    assert told(TEXT + f"    x = {'a + ' * 90}a\n") == ((), ())
    assert told(TEXT.replace("torch.exp", "torch.sin").replace("a.norm", "exp.norm") + "    e = exp\n")[0] == ()
