"""Which other lines of a function compute the like of an expression."""

import ast

import pytest

from nandiag.events import Alike
from nandiag.runtime.evidence.around.again import again, alike
from nandiag.runtime.evidence.around.place import Place


def lines(text, expression):
    """The lines told of the first ``expression`` in the function, or the module, of ``text``."""
    tree = ast.parse(text)
    scope = next((one for one in tree.body if isinstance(one, ast.FunctionDef)), tree)
    nodes = (one for one in ast.walk(scope) if isinstance(one, ast.expr))
    own = min((one for one in nodes if ast.unparse(one) == expression), key=lambda one: one.lineno)
    return again(Place("train.py", (tree, own) if scope is tree else (tree, scope, own)))


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (["w = -torch.exp(self.w)", "n = torch.exp(w) * n"], ()),
        (["n = torch.exp(-(x ** 2))", "m = torch.exp(-d.abs())", "o = torch.exp(F.logsigmoid(g))"], ()),
        (["w = -x", "n = torch.exp(w)", "m = torch.exp(-y)"], (3,)),
        (["w = -torch.exp(y)", "w = y", "n = torch.exp(w)"], (2, 4)),
        (["n = torch.exp(v[t])"], (2,)),
    ],
)
def test_exponentials_that_are_1_at_most_or_of_a_weight_alone_are_none_of_them(others, told):
    assert lines("\n".join(["e = torch.exp(k[t])", *others]), "torch.exp(k[t])") == told


@pytest.mark.parametrize(
    ("text", "expression", "told"),
    [
        ("m = r[done].mean()\nl = -(p * (r - m)).mean()", "r[done].mean()", ()),  # that of all is never empty
        ("m = r[done].mean()\nl = loss.mean()", "r[done].mean()", ()),
        ("m = r[done].mean()\nl = r[0].mean()\nk = r[:, 1:].mean()", "r[done].mean()", ()),
        ("m = r[done].mean()\nl = p[kept].mean()", "r[done].mean()", (2,)),
        ("m = r[done].mean()\nl = (r[done] - m).square().mean()", "r[done].mean()", (2,)),
        ("m = r[done].mean()\nl = r[done].sum(1).mean()", "r[done].mean()", (2,)),
        ("m = torch.mean(r[done], 0)\nl = torch.mean(loss, 0)", "torch.mean(r[done], 0)", ()),
        ("s = r[done]\nm = s.mean()\nl = loss.mean()", "s.mean()", ()),
        ("s = r[done]\nm = s.mean()\nl = (s - m).square().mean()", "s.mean()", (3,)),
        ("s = r[done]\nm = s.mean()\nt = r.masked_select(k)\nl = t.std()\nn = t.mean()", "s.mean()", (5,)),
        ("m = r.mean(0)\nl = (r - m).square().mean(0)\nn = z.mean(0)", "r.mean(0)", (2,)),
        ("a = x.std(1)\nb = y.std(1)\nc = x.std(0)", "x.std(1)", (2, 3)),
    ],
)
def test_another_mean_is_told_where_it_may_be_one_of_nothing_with_this_one(text, expression, told):
    assert lines(text, expression) == told


@pytest.mark.parametrize(
    ("text", "expression", "told"),
    [
        ("a = a / a.norm(dim=-1)\nb = b / b.norm(dim=-1)", "a / a.norm(dim=-1)", (2,)),
        ("def f(a, p, n):\n  x = ((a - p) ** 2).sum(-1).sqrt()\n  y = ((a - n) ** 2).sum(-1).sqrt()\n  return x - y",
         "((a - p) ** 2).sum(-1).sqrt()", (3,)),
        ("if t:\n  r = p * torch.log(p)\nelse:\n  r = p * torch.log(p)", "torch.log(p)", (4,)),
        ("u = y * torch.log(p)\nv = (1 - y) * torch.log(1 - p)", "torch.log(p)", (2,)),
        ("u = x / n\nw = z / n\nv = x / m", "x / n", (2,)),
        ("u = self.a[0].log()\nv = self.b[1].log()", "self.a[0].log()", (2,)),
        ("u = torch.log(t / l)\nv = (t / l) ** k", "torch.log(t / l)", (2,)),
        ("u = torch.log(t)\nv = t ** 0.5", "torch.log(t)", (2,)),
        ("u = m / (1 - a ** s['t'])\nv = w / (1 - b ** s['t'])", "m / (1 - a ** s['t'])", (2,)),
    ],
)  # fmt: skip
def test_the_same_function_or_division_is_told(text, expression, told):
    assert lines(text, expression) == told


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("u = torch.log(p)\nv = torch.log(p.clamp_min(1e-6))", "torch.log(p)"),  # it is mended already
        ("u = torch.log(p)\nv = torch.log(q.sum(1))", "torch.log(p)"),
        ("u = torch.log(p)\nv = np.log(p)", "torch.log(p)"),  # an array is mended in another way
        ("u = torch.log(p)\nv = torch.log(torch.arange(1, n + 1))", "torch.log(p)"),
        ("u = a / b\nv = c / d", "a / b"),
        ("u = net(a)\nv = net(b)", "net(a)"),
        ("u = torch.log(t)\nv = t ** 2", "torch.log(t)"),
        ("def f(p):\n  return torch.log(p)\ndef g(p):\n  return torch.log(p)", "torch.log(p)"),
        ("u = torch.log(p) + torch.log(q)", "torch.log(p)"),  # a mend of the line mends both
        ("u = torch.log(p)\n" + "v = torch.log(q)\n" * 9, "torch.log(p)"),
    ],
)
def test_what_differs_is_guarded_or_stands_everywhere_is_not(text, expression):
    assert lines(text, expression) == ()


def test_the_text_of_such_a_line_is_told_with_the_expression_in_it(tmp_path):
    text = "def f(a, b, t):\n    a = a / a.norm(dim=-1)\n    b = b / b.norm(dim=-1)\n    return a\n"
    file = tmp_path / "train.py"
    file.write_text(text)
    tree = ast.parse(text)
    own = tree.body[0].body[0].value
    assert alike(Place(str(file), (tree, tree.body[0], own))) == (Alike(3, "    b = b / b.norm(dim=-1)", (8, 26)),)


def test_what_takes_several_lines_or_is_no_ascii_has_no_text(tmp_path):
    text = "u = torch.log(a)\nv = torch.log(\n  b)\nw = 'ä', torch.log(c)\n"
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    tree = ast.parse(text)
    assert alike(Place(str(file), (tree, tree.body[0].value))) == ()
    assert again(Place(str(file), (tree, tree.body[0].value))) == (2, 4)
