"""What a statement computes and keeps nowhere, and whether each step makes anew what it is of."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")


class Model:
    """What each of the statements below is a method of, behind ``self.scale`` and beside a call of ``probe``."""

    TEXT = """import torch
class A:
    def __init__(self):
        self.scale = torch.ones(2)
    def keep(self, scale=0):
        {}
    def loss(self, x):
        {}
        return probe(torch.log(self.scale) + x)
found = A().loss(torch.ones(2))
"""


@pytest.mark.parametrize(
    ("elsewhere", "here", "told"),
    [
        ("self.scale.data.clamp(min=0.1)", "pass", [("self.scale", 6)]),
        ("torch.clamp(self.scale, 0.1)", "x.nan_to_num(0)", [("x", 8), ("self.scale", 6)]),
        ("self.scale + 1", "pass", [("self.scale", 6)]),
        ("self.scale.data.clamp_(min=0.1)", "x = x.clamp(0)", []),
        ("print(self.scale.clamp(0))", "self.seen = self.scale.abs()", []),
        ("scale.clamp(0)", "self.other = 0", []),  # a variable is no attribute
        ("x = torch.ones(2); x.clamp(0)", "pass", []),  # nor one of another function
        ("self.scale.detach(); self.scale.size()", "self.keep()", []),
        ("torch.clamp(self.scale, max=9.0, out=self.scale)", "torch.sub(x, 0, out=x)", []),  # kept, by out
        ("torch.clamp(self.scale, max=9.0, out=None)", "pass", [("self.scale", 6)]),
        ("torch.nn.functional.relu(self.scale, inplace=True)", "torch.relu(torch.abs(x, out=x))", []),
        ("self.scale + self.scale.abs_()", "(y := x) + 1; x.mul(x.add_(1))", []),
        (
            "self.scale + [2]; self.scale + 'text'; self.scale + (1,); {} | self.scale",
            "pass",
            [],
        ),  # no arithmetic of tensors
    ],
)
def test_what_is_computed_and_kept_nowhere(run, elsewhere, here, told):
    found = run(Model.TEXT.format(elsewhere, here)).unkept
    assert [(one.name, one.line) for one in found] == told


@pytest.mark.parametrize(
    ("lines", "anew"),
    [
        ("p = torch.sigmoid(x)\np.clamp(0)", True),
        ("p, q = torch.max(x, 0)\np.clamp(0)", True),
        ("p, q = x.exp(), x.w\np.clamp(0)", True),
        ("q, p = x.exp(), x.w\np.clamp(0)", False),
        ("p = x.w\np.clamp(0)", False),  # another name of what may be a weight
        ("p = torch.exp(x)\np = x.w\np.clamp(0)", False),
        ("p = nn.Parameter(x.exp())\np.clamp(0)", False),
        ("p = x.exp()\np.requires_grad_()\np.clamp(0)", False),
        ("p = torch.rand(2, requires_grad=True)\np.clamp(0)", False),
        ("p.clamp(0)\np = torch.sigmoid(x)", False),
        ("p = x.exp()\nfor _ in x:\n    p.clamp(0)", False),
        ("for _ in x:\n    p = x.exp()\n    p.clamp(0)", True),
        ("for p in x:\n    p.clamp(0)", False),
        ("p: torch.Tensor = -x\np.clamp(0)", True),
        ("p = torch.sigmoid(x)\nx.clamp(0)", True),  # what the function is handed, by its own name
    ],
)
def test_whether_each_step_makes_anew_what_a_statement_computes_of(run, lines, anew):
    body = "".join(f"    {one}\n" for one in ("if x is None:", *(f"    {one}" for one in lines.split("\n"))))
    text = f"import torch\ndef f(x):\n    p = x\n{body}    return probe(torch.log(p) + x)\nfound = f(torch.ones(2))\n"
    assert [one.anew for one in run(text).unkept] == [anew]


def test_a_file_makes_anew_what_its_loop_does(run):
    text = (
        "import torch\nx = torch.ones(2)\nw = x.exp()\nfor _ in x:\n    p = x.exp()\n    p.clamp(0)\n    w.clamp(0)\n"
    )
    found = run(f"{text}    found = probe(torch.log(p) + w)\n").unkept
    assert {one.name: one.anew for one in found} == {"p": True, "w": False}


@pytest.mark.parametrize(
    ("elsewhere", "here", "anew"),
    [
        ("self.scale.clamp(0)", "pass", False),
        ("pass", "self.scale = x.exp(); self.scale.clamp(0)", True),
        ("self.scale = x.exp()", "self.scale.clamp(0)", False),
        ("net = A(); self.scale = abs(scale); net.scale.clamp(0)", "pass", False),  # that is of another object
    ],
)
def test_an_attribute_is_made_anew_where_its_own_function_makes_it(run, elsewhere, here, anew):
    assert [one.anew for one in run(Model.TEXT.format(elsewhere, here)).unkept] == [anew]


@pytest.mark.parametrize(
    ("elsewhere", "told"),
    [
        ("class B:\n    def more(self):\n        self.scale + 2", []),  # another object's
        ("class B(A):\n    def more(self):\n        self.scale + 2", []),
        ("b = B()\nb.scale + 2", []),
        ("class B(A): pass\nb = B()\nb.scale + 2", [("self.scale", 14)]),
        ("a = wrapped(A())\na.scale.abs()", [("self.scale", 13)]),
        ("a.scale.abs()", []),
    ],
)
def test_an_attribute_of_another_object_is_another(run, elsewhere, told):
    text = f"{Model.TEXT.format('pass', 'pass')}def never(wrapped, a, B):\n    pass\nif not found:\n"
    text += "".join(f"    {line}\n" for line in elsewhere.split("\n"))
    assert [(one.name, one.line - 2) for one in run(text).unkept] == told


def test_what_a_base_computes_of_its_own_attribute(run):
    base = "class Base:\n    def keep(self):\n        self.scale.clamp(0.1)\n"
    text = Model.TEXT.format("pass", "pass").replace("class A:", "class A(Base):")
    assert [one.line for one in run(text.replace("import torch\n", f"import torch\n{base}")).unkept] == [4]


def test_what_a_call_writes_by_out_is_written(run):
    lines = "    torch.abs(x, out=x)\n    torch.max(y, 0, out=(x, y))\n    torch.relu(x, inplace=True)\n"
    found = run(f"import torch\ndef f(y):\n    x = y\n    if y is None:\n{lines.replace('    ', '        ')}"
                "    return probe(torch.log(x))\nfound = f(torch.ones(2))\n")  # fmt: skip
    assert [(one.name, one.lines) for one in found.written] == [("x", (3, 5, 6, 7))]


@pytest.mark.parametrize("given", ["x[0].data", "torch.exp(x).data", "x.detach().data"])
def test_what_has_no_name_of_its_own_is_in_no_statement_that_is_kept_nowhere(run, given):
    text = f"import torch\ndef f(x):\n    'Say so.'\n    print('x')\n    return probe(torch.log({given}))\n"
    assert run(f"{text}found = f(torch.ones(2))\n").unkept == ()
