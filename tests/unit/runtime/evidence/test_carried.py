"""What loops multiply from step to step, as the text has it."""

import ast

import pytest

from nandiag.runtime.evidence.around.carried import carried
from nandiag.runtime.evidence.around.place import Place


def told(loop, last="y = torch.log(a.sum())"):
    """What is told of ``a`` at the last line of a function whose loop has one line."""
    tree = ast.parse(f"def f(a, T, e):\n  for t in range(9):\n    {loop}\n  {last}\n")
    scope = tree.body[0]
    return [(one.name, one.line, one.text) for one in carried(Place("train.py", (tree, scope, *_path(scope.body[-1]))))]


def _path(statement):
    return (statement, statement.value)


@pytest.mark.parametrize(
    "loop",
    ["a = (a @ T) * e[:, t]", "a = torch.matmul(a, T) * e[t]", "a = (a[:, None] * torch.exp(T + e[t])).sum(0)",
     "a *= e[t]", "a = a @ T + a * e", "a = torch.einsum('bi,ij->bj', a, T)"],
)  # fmt: skip
def test_a_multiple_of_itself_is_carried(loop):
    assert [one[:2] for one in told(loop)] == [("a", 3)]


@pytest.mark.parametrize(
    "loop",
    ["a = a @ T + e", "a = torch.relu(a @ T)", "a = a.sum(0)", "a = (a @ T) * a", "a = e / (T @ a)", "b = a @ T",
     "a = net(a @ T)", "a *= a"],
)  # fmt: skip
def test_what_is_no_multiple_of_itself_is_not(loop):
    assert told(loop) == []


def test_what_the_expression_does_not_name_is_not():
    assert told("a = a @ T", "y = torch.log(e.sum())") == []


OF_A_CLASS = """
class Penalty:
    def __call__(self, value):
        return 0.5 * self.rho * value
    def update(self):
        self.rho *= self.growth
        self.other *= 2
"""


def test_what_its_class_multiplies_is_carried_from_call_to_call():
    tree = ast.parse(OF_A_CLASS)
    owner = tree.body[0]
    place = Place("train.py", (tree, owner, owner.body[0], *_path(owner.body[0].body[0])))
    assert [(one.name, one.line, one.text) for one in carried(place)] == [("self.rho", 6, "self.rho *= self.growth")]
