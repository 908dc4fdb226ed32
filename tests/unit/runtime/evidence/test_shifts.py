"""The largest exponent of each rank, added up over ranks where the largest of all is meant."""

import ast

import pytest

from nandiag.runtime.evidence.around.over_ranks.shifts import summed
from nandiag.runtime.evidence.around.place import Place

TEXT = """def f(h, w):
    z = h @ w.T
    top = {largest}
    {reduce}
    z = z - top[:, None]
    total = dnn.all_reduce(z.exp().sum(-1))
    return total.log()
"""
LARGEST, SUM = "z.detach().amax(-1)", "dist.all_reduce(top)"


def told(text):
    tree = ast.parse(text)
    scope = tree.body[0]
    own = scope.body[-1]
    return [(one.line, one.text) for one in summed(Place("train.py", (tree, scope, own, own.value)))]


@pytest.mark.parametrize("reduce", [SUM, "dist.all_reduce(top, op=dist.ReduceOp.SUM)"])
@pytest.mark.parametrize("largest", [LARGEST, "torch.max(z, -1).values", "z.max(dim=-1)[0]"])
def test_a_sum_of_the_largest_is_told(largest, reduce):
    assert told(TEXT.format(largest=largest, reduce=reduce)) == [(4, reduce)]


@pytest.mark.parametrize(
    ("largest", "reduce"),
    [(LARGEST, "dist.all_reduce(top, op=dist.ReduceOp.MAX)"), ("z.mean(-1)", SUM), (LARGEST, "dist.all_reduce(w)")],
)
def test_other_reductions_are_none(largest, reduce):
    assert told(TEXT.format(largest=largest, reduce=reduce)) == []


def test_it_is_seen_within_the_exponential_itself():
    text = "def f(z):\n    top = z.amax(-1)\n    all_reduce(top)\n    return torch.exp(z - top.unsqueeze(-1))\n"
    assert told(text) == [(3, "all_reduce(top)")]


def test_what_is_added_up_behind_is_no_matter():
    text = "def f(z):\n    top = z.amax(-1)\n    s = (z - top).exp()\n    return s.log()\n    dist.all_reduce(top)\n"
    tree = ast.parse(text)
    own = tree.body[0].body[-2]
    assert list(summed(Place("train.py", (tree, tree.body[0], own, own.value)))) == []
