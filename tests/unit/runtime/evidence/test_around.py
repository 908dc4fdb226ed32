"""What the script's own text says about the names in an expression."""

import ast
import sys

import pytest

from nandiag.events import Meaning
from nandiag.events.site import Reduced
from nandiag.runtime.evidence.around.place import set_by_class, torch_by
from nandiag.runtime.frames import Frame
from tests.unit.runtime.evidence.probing import probe

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")


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


def test_what_one_line_alone_makes_is_of_that_kind_though_it_may_have_been_written_into(run):
    text = "def f(x, box):\n    n, k = abs(x), 2\n    m = 1\n    m = 2\n    box[0] = 5\n"
    found = run(f"{text}    return probe(n, m, x) if k else 0\nfound = f(3, [0])\n")
    kinds = [(one.name, one.text, one.line) for one in found.kinds]
    assert (texts(found), kinds) == ({}, [("n", "abs(x)", 2), ("k", "2", 2)])


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
        "p = 3\n    p = abs(p)\n    return probe(p)",
        "p, q = x, 3\n    p, q = q, p\n    return probe(p)",
        "p = abs(x); p = p + 1; return probe(p)",
        "p = abs(x)\n    return [probe(p) for p in (3,)][0]",
        "p = abs(x)\n    return (lambda p: probe(p))(3)",
        "g = lambda: probe(p)\n    p = abs(x)\n    return g()",
        "p = abs(x)\n    match x:\n        case p: pass\n    return probe(p)",
        "def g():\n        nonlocal p\n        p = 4\n    p = abs(x)\n    g()\n    return probe(p)",
        "p = torch.ones(2)\n    p.data.clamp_(0)\n    return probe(p)",
        "p = torch.ones(2)\n    torch.relu_(p)\n    return probe(p)",
        "p = torch.ones(2)\n    torch.sub(p, 1, out=p)\n    return probe(p)",
        "p = torch.ones(2)\n    torch.nn.ReLU(inplace=True)(p)\n    return probe(p)",
        "p = torch.ones(2)\n    p.data = p + 1\n    return probe(p)",
        "p = torch.ones(2)\n    q = p\n    q -= 1\n    return probe(p)",
        "p = torch.ones(2)\n    q = p.view(-1)\n    q[0] = 3\n    return probe(p)",
        "p = torch.ones(2)\n    clean(p)\n    return probe(p)",
        "p = torch.ones(2)\n    if not x:\n        dist.all_reduce(p)\n    return probe(p)",
        "p = torch.ones(2)\n    if not x:\n        torch.distributed.all_reduce(p)\n    return probe(p)",
    ],
)
def test_names_that_are_not_sure(run, body):
    ours = "class Tensor:\n    clamp_ = print\ndef clean(x):\n    x.zero_()\n"
    found = run(f"import torch\nimport torch.distributed as dist\n{ours}def f(x):\n    {body}\nfound = f(2)\n")
    assert "p" not in texts(found)


def test_a_name_stays_known_beside_what_only_reads_it(run):
    body = "p = abs(x)\n    print(p, x)\n    q = torch.add(p, x)\n    seen.append(p)\n"
    found = run(f"import torch\nseen = []\ndef f(x):\n    {body}    return probe(p)\nfound = f(torch.ones(1))\n")
    assert texts(found)["p"] == "abs(x)"


def test_what_a_name_behind_a_name_is_made_of_must_be_the_same_at_the_expression(run):
    found = run("def f(a):\n    z = a + 1\n    p = abs(z)\n    a = 7\n    return probe(p)\nfound = f(2)\n")
    assert texts(found) == {"p": "abs(z)"}


_MODULE = """import torch
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.body = Inner(); self.chain = torch.nn.Sequential(Inner())
    def forward(this, x):
        return CALL
class Inner(torch.nn.Module):
    def forward(this, h):
        keep.append(probe(h))
        return h
keep = []
M()(torch.ones(2))
found = keep[0]
"""


@pytest.mark.parametrize("call", ["this.body(x + 1)", "this.body(h=x + 1)", "this.body.forward(x + 1)"])
def test_what_a_module_hands_to_another(run, call):
    assert texts(run(_MODULE.replace("CALL", call)))["h"] == "x + 1"


@pytest.mark.parametrize(
    "call",
    [
        "this.chain(x + 1)",
        "checkpoint(this.body, x + 1, use_reentrant=False)",
        "torch.func.functional_call(this.body, {}, (x + 1,))",
        "Inner.forward(None, x + 1)",
        "list(map(this.body, [x + 1]))[0]",
        "this.body.register_forward_pre_hook(lambda m, a: (a[0] - 1,)) and this.body(x + 1)",
    ],
)
def test_what_reaches_a_module_by_another_way_is_not_told(run, call):
    assert "h" not in texts(run(_MODULE.replace("CALL", call)))


@pytest.mark.parametrize(("decorator", "call"), [("", "A().f(2 + 3)"), ("@staticmethod", "A().f(1, 2 + 3)")])
def test_the_parameters_of_a_method(run, decorator, call):
    text = f"class A:\n    {decorator}\n    def f(a, p):\n        return probe(p)\nfound = {call}\n"
    assert texts(run(text)) == {"p": "2 + 3"}


def test_a_function_may_call_its_first_parameter_as_it_likes(run):
    assert texts(run("def f(ctx, p):\n    return probe(p)\nfound = f(1, 2 + 3)\n")) == {"p": "2 + 3"}


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


@pytest.mark.parametrize(
    ("before", "returned", "call", "uses"),
    [
        ("", "probe(x)", "g(2)", ("found = g(2)",)),
        ("@torch.no_grad()\n", "probe(x)", "[g(3)][0]", ("found = [g(3)][0]",)),
        ("", "(probe(x), 1)", "g(2)[0]", ()),
    ],
)
def test_what_is_done_with_what_a_function_returns_is_its_callers(run, before, returned, call, uses):
    assert run(f"{before}def g(x):\n    return {returned}\nfound = {call}\n").uses == uses


def test_a_file_that_cannot_be_read_says_nothing():
    space = {"probe": probe}
    exec(compile("found = probe(1)", "gone.py", "exec"), space)  # noqa: S102
    assert space["found"] is None


SHARES = "def shares(x):\n    mean = x + 1\n    var = x * x - mean * mean\n    return mean, var\n"


def test_what_a_function_of_the_file_hands_back(run):
    found = run(f"{SHARES}def f(x):\n    m, v = shares(x)\n    return probe(abs(v))\nfound = f(3)\n")
    assert [(one.name, one.text, one.line, one.inside) for one in found.names] == [
        ("v", "x * x - mean * mean", 3, False)
    ]


def test_what_a_method_of_the_same_object_hands_back(run):
    text = (
        "class Norm:\n    @torch.no_grad()\n    def shares(self, x):\n        return x + 1, x - 1\n"
        "    def f(self, x):\n        m, v = self.shares(x)\n        return probe(v)\nfound = Norm().f(3)\n"
    )
    assert texts(run(text)) == {"v": "x - 1"}


@pytest.mark.parametrize(
    "text",
    [
        f"{SHARES}shares = abs\n",
        f"{SHARES}def g(shares):\n    pass\nclass A:\n    def shares(self):\n        pass\n",
        SHARES.replace("    return", "    if x > 9:\n        return 1, 2\n    return"),
        SHARES.replace("    return", "    var += 1\n    return"),
        f"import functools\n@functools.cache\n{SHARES}",
    ],
)
def test_nothing_is_told_of_what_it_hands_back_where_another_may_run(run, text):
    space = text.replace("shares = abs", "if False:\n    shares = abs")
    assert texts(run(f"{space}def f(x):\n    m, v = shares(x)\n    return probe(v)\nfound = f(3)\n")) == {}


@pytest.mark.parametrize(("rest", "divides"), [("if x / n else y", True), ("if x * n else y", False), ("", False)])
def test_a_name_that_divides_elsewhere_in_the_function_is_told_so(run, rest, divides):
    text = f"def f(x):\n    n = abs(x)\n    y = probe(x / n)\n    return y {rest}\nfound = f(2)\n"
    assert [one.divides for one in run(text).names if one.name == "n"] == [divides]


def lines(found):
    return {one.name: one.lines for one in found.written}


def test_where_a_variable_of_the_function_is_written(run):
    text = (
        "def f():\n    scale = 1.0\n    low, high = 0, 1\n    for step in range(2):\n        found = probe(1 / scale)\n"
        "        scale *= 0.5\n        def other(scale):\n            scale = 3\n    return found\n"
        "scale = 9\nfound = f()\n"
    )
    assert lines(run(text)) == {"scale": (2, 6)}


@pytest.mark.parametrize(
    ("begun", "step", "counts"),
    [
        ("0", "n += 1", True),
        ("abs(zeros(2))", "n += 1", False),
        ("zeros(2)", "n = n + 2", True),
        ("float(3)", "n += 1.0", True),
        ("0", "n += 0.5", False),
        ("0.1", "n += 1", False),
        ("0", "n = 3", False),
        ("0", "n -= 1", False),
    ],
)
def test_what_is_counted_up_by_whole_numbers(run, begun, step, counts):
    text = f"zeros = int\ndef f():\n    n = {begun}\n    {step}\n    return probe(1 / n)\nfound = f()\n"
    assert [one.counts for one in run(text).written] == [counts]


@pytest.mark.parametrize(
    ("before", "behind", "raised"),
    [
        ("pass", "self.n += 1", 6),
        ("pass", "self.n = self.n + 1", 6),
        ("self.n += 1", "pass", None),
        ("self.n = 1", "self.n += 1", None),
        ("pass", "self.n += 2", None),
        ("pass", "self.n = 0", None),
    ],
)
def test_a_count_that_is_raised_behind_the_line_is_known(run, before, behind, raised):
    text = (
        f"class A:\n    def f(self):\n        {before}\n        for k in range(1):\n            x = probe(k + self.n)\n"
        f"        {behind}\n        return x\na = A()\na.n = 0\nfound = a.f()\n"
    )
    assert {one.name: one.raised for one in run(text).written}["self.n"] == raised


@pytest.mark.parametrize(
    ("made", "found"), [("torch.ones(1)", (3,)), ("self.w.view(-1)", (3, 5)), ("torch.empty_like(self.w)", (3, 5))]
)
def test_a_variable_that_is_called_like_an_attribute_need_not_be_it(run, made, found):
    text = (
        "class A:\n    def __init__(self):\n        self.w = torch.ones(1)\n    def f(self):\n"
        f"        x, w = 1, {made}; w.mul_(2)\n        return probe(1 / self.w)\nfound = A().f()\n"
    )
    assert lines(run(text))["self.w"] == found


def test_a_collective_writes_what_it_is_given_first(run):
    text = (
        "import types\nclass ReduceOp:\n    MIN = 1\ndist = types.SimpleNamespace(all_reduce=lambda *a, **k: 0)\n"
        "def f():\n    peak = 2.0\n    dist.all_reduce(peak, op=ReduceOp.MIN)\n    other = dist.all_reduce(3, peak)\n"
        "    return probe(1 / peak)\nfound = f()\n"
    )
    found = run(text)
    assert lines(found) == {"peak": (6, 7)}
    assert [one.reduced for one in found.written] == [(Reduced(7, "dist.all_reduce(peak, op=ReduceOp.MIN)"),)]


def test_where_a_variable_of_the_file_is_written(run):
    text = (
        "scale = torch.ones(1)\ndef anneal():\n    global scale\n    scale = scale / 2\ndef hide():\n    scale = 1\n"
        "anneal()\nscale.mul_(2)\ndef f():\n    return probe(1 / scale)\nfound = f()\n"
    )
    assert lines(run(text)) == {"scale": (1, 4, 8)}


def test_where_an_attribute_is_written_of_which_a_name_is_a_part(run):
    text = (
        "class Shard:\n    def __init__(self):\n        self.rows = [1, 2]\n    def get(self, i):\n"
        "        row = self.rows[i]\n        return probe(row)\nfound = Shard().get(0)\n"
    )
    assert lines(run(text)) == {"row": (5,), "self.rows": (3,)}


def test_where_an_attribute_is_written(run):
    text = (
        "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('scale', torch.ones(1))\n    def update(self, x):\n        self.scale.copy_(x)\n"
        "    def forward(self):\n        return probe(1 / self.scale)\n"
        "m = M()\nm.scale = torch.zeros(1)\nm.update(1)\nfound = m()\n"
    )
    assert lines(run(text)) == {"self.scale": (4, 6, 10)}


@pytest.mark.parametrize(
    "text",
    [
        "import math\nfound = probe(math)\n",
        "def f(scale):\n    return probe(scale)\nfound = f(2)\n",
        "def f():\n    return probe(len)\nfound = f()\n",
        "def f(g):\n    return probe(g.scale)\nfound = f(torch.finfo)\n".replace("g.scale", "g.max"),
    ],
    ids=["a module", "a parameter", "a builtin", "an attribute of elsewhere"],
)
def test_what_the_file_does_not_write_has_no_lines(run, text):
    assert lines(run(text)) == {}


def test_a_line_that_puts_nothing_there_yet_is_none_of_those(run):
    text = (
        "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.refine = None\n"
        "        self.head, self.tail = None, None\n    def grow(self):\n        self.refine: object = torch.ones(1)\n"
        "        self.head = self.tail = torch.ones(1)\n"
        "    def forward(self):\n        return probe(self.refine / (self.head + self.tail))\n"
        "m = M()\nm.grow()\nfound = m()\n"
    )
    assert lines(run(text)) == {"self.refine": (7,), "self.head": (8,), "self.tail": (8,)}


def test_where_an_attribute_is_written_that_the_expression_names_by_another_name(run):
    found = run(
        "class A:\n    def __init__(self):\n        self.rate = 1\n    def f(self):\n        a, b = 2, self.rate\n"
        "        return probe(b)\nfound = A().f()\n"
    )
    assert lines(found) == {"b": (5,), "self.rate": (3,)}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch", "torch"), ("import torch as th", "th"), ("import torch.nn.functional", "torch"),
        ("import torch.nn.functional as F", ""), ("from torch import nn", ""), ("import torchvision", ""),
        ("import numpy, torch as t", "t"), ("try:\n    import torch\nexcept ImportError:\n    torch = None", "torch"),
    ],
)  # fmt: skip
def test_the_name_by_which_the_file_has_torch(text, name):
    assert torch_by(ast.parse(text)) == name


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("sum([p * p for p in ps]) ** 0.5", {"n": "sum([p * p for p in ps]) ** 0.5"}),
        ("sum([p for p in p])", {}),  # the p that it goes through is another behind the line than before
    ],
)
def test_what_a_comprehension_goes_through_is_no_name_behind_it(run, made, told):
    text = f"def f(ps, p):\n    n = {made}\n    return [probe(p / n) for p in ps][0]\nfound = f(g(), g())\n"
    found = run(f"def g():\n    return [1.0]\n{text}")
    assert {name: text for name, text in texts(found).items() if name == "n"} == told


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ("def restore(self, s):\n        self.state.update(m=1, step=s.get('step', 0))", ["s.get('step', 0)"]),
        ("def load_state_dict(self, s):\n        self.state['step'] = s['t']", ["s['t']"]),
        ("def __setstate__(self, s):\n        self.state = {'step': s}", ["s"]),
        ("def reset(self, s):\n        self.state['step'] = s['t']", []),
        ("def load(self, s):\n        self.state['other'] = s['t']", []),
    ],
)
def test_what_a_loaded_state_gives_a_key_that_a_name_stands_for(run, load, told):
    text = (
        "class A:\n    def __init__(self):\n        self.state = {'step': 3}\n    def step(self):\n"
        "        state = self.state\n        t = state['step']; return probe(1 - 0.9 ** t)\n"
        f"    {load}\nfound = A().step()\n"
    )
    found = [one for one in run(text).restored if one.name == "state['step']"]
    assert [one.text for one in found] == told
    assert all(one.line == 8 for one in found)


@pytest.mark.parametrize(
    ("more", "told"),
    [("", "nn.Parameter(torch.ones(d))"), ("\n        self.scale = nn.Parameter(torch.zeros(d))", None)],
)
def test_what_a_class_of_the_file_gives_its_attribute_at_first(tmp_path, more, told):
    path = tmp_path / "train.py"
    lines = "class Scale(nn.Module):\n    def __init__(self, d):\n        self.scale = nn.Parameter(torch.ones(d))"
    path.write_text(f"{lines}{more}\nmodel.to_empty(device='cpu')\n")
    frame = Frame(compile(path.read_text(), str(path), "exec"), 0)
    assert set_by_class([frame], "Scale", "scale") == told
    assert set_by_class([frame], "Linear", "scale") is None


def test_which_of_the_lines_multiply_what_it_was(run):
    text = "tau = 0.5\nfor _ in range(3):\n    tau *= 0.8\ntau = tau / 2\ntau = 2 / tau\nfound = probe(1 / tau)"
    (told,) = (one for one in run(text).written if one.name == "tau")
    assert told.scaled == (3, 4)
