"""What the function of an expression hands back."""

import ast

import pytest

from nandiag.runtime.evidence.around.place import Place
from nandiag.runtime.evidence.around.returned import ends


def told(text):
    tree = ast.parse(text)
    scope = next(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    own = next(one for one in ast.walk(scope) if isinstance(one, ast.BinOp))
    loops = (one for one in ast.walk(scope) if isinstance(one, ast.For | ast.While) and own in ast.walk(one))
    return ends(Place("train.py", (tree, scope, *loops, own)))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("def f(a, b):\n  b.copy_(a / 2)", ""),
        ("def f(a, b):\n  if b: return\n  b.copy_(a / 2)\n  return None", ""),
        ("def f(self, a):\n  a.copy_(a / 2)\n  return self.model", "self.model"),
        ("def f(self, a):\n  a.copy_(a / 2)\n  return a", "a"),
    ],
)
def test_what_is_handed_back_is_known_ahead(text, given):
    assert told(text) == given


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n  b = a / 2\n  return b",  # not there yet further up
        "def f(a):\n  a = a / 2\n  return a",
        "def f(self, a):\n  self.b = a / 2\n  return self.b",
        "def f(a, b):\n  if b: return a\n  b.copy_(a / 2)\n  return b",
        "def f(a):\n  yield a / 2",
        "def f(self, a):\n  a.copy_(a / 2)\n  return self.model()",
        "async def f(a):\n  a.copy_(a / 2)",
    ],
)
def test_what_is_made_on_the_way_or_differs_is_not(text):
    assert told(text) is None


@pytest.mark.parametrize(
    "line",
    [
        "dist.all_gather(out, x)", "torch.distributed.broadcast(x, 0)", "all_reduce(x)",
        "x = all_gather_tensor(x, 0, g)",
        "work = dist.isend(x, 1)", "self.comm.all_reduce(x)",
    ],
)  # fmt: skip
def test_a_function_that_exchanges_something_is_not_to_be_left_early(line):
    assert told(f"def f(self, x):\n    y = x / 2\n    {line}\n") is None


def test_other_words_are_no_exchange():
    assert told("def f(self, x):\n    y = x / 2\n    torch.broadcast_tensors(x, y)\n    x.gather(0, y)\n") == ""


@pytest.mark.parametrize(
    ("made", "given"),
    [("total = sum(n)\n  for p in ps:", ""), ("for p in ps:\n    total = p.norm()", None), ("for total in n:", None)],
)
def test_the_rest_of_a_loop_is_not_left_for_what_one_turn_makes(made, given):
    assert told(f"def f(ps, n):\n  {made}\n    p.mul_(1 / total)") == given


def test_what_is_divided_in_place_in_each_turn_by_the_same():
    tree = ast.parse("def f(avg, n):\n  total = n.sum()\n  for k in avg:\n    avg[k] /= total\n")
    scope, loop = tree.body[0], tree.body[0].body[1]
    assert ends(Place("train.py", (tree, scope, loop, loop.body[0]))) == ""


def test_what_a_turn_divides_may_be_its_own():
    text = "def f(self, ts, ps):\n  for t, p in zip(ts, ps):\n    p.copy_(t / self.n)"
    tree = ast.parse(text)
    (scope,), (loop,) = tree.body, tree.body[0].body
    own = next(one for one in ast.walk(loop) if isinstance(one, ast.BinOp))
    assert ends(Place("train.py", (tree, scope, loop, own))) == ""
