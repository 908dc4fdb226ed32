"""Exponentials whose logarithm is taken some lines further on: the lines in logarithms give the same numbers."""

import ast
import math
import re
from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.mends.logarithms import log_space as mends
from nandiag.events import Around, Site, Statement
from tests.unit.analysis.mends.told import placed

_TAG = re.compile(r"  # line (\d+)$")


def facts_on(at, by_hand, text, line, expression="", op="exp", outlive=()):
    tree = ast.parse(text).body
    function = tree[0] if isinstance(tree[0], ast.FunctionDef) else None
    told = [*function.body, *tree[1:]] if function is not None else tree
    block = tuple(Statement(node.lineno, ast.unparse(node)) for node in told)
    around = Around(block=block, outlive=outlive, handed=function.name if function is not None else None)
    source = text.splitlines()[line - 1]
    kind = "posinf" if op == "exp" else "neginf"
    given = by_hand.fact(max=130.0, absmax=130.0) if op == "exp" else by_hand.fact(zeros=3, min=0.0)
    facts = at(op, (given,), (by_hand.fact(**{kind: 1}),), **placed(source, expression or source), line=line)
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def pasted(text, line, code):
    lines = text.splitlines()
    for one in code.splitlines():
        tag = _TAG.search(one)
        place = (int(tag[1]) if tag else line) - 1
        lines[place] = " " * (len(lines[place]) - len(lines[place].lstrip())) + _TAG.sub("", one)
    return "\n".join(lines)


def run(text):
    torch.manual_seed(0)
    names = {"torch": torch, "math": math, "z": torch.randn(6, 6, requires_grad=True),
             "h": torch.randn(6), "eye": torch.eye(6).bool(), "d": torch.rand(6, 6), "s": torch.rand(6) + 0.5,
             "w": torch.rand(6, 6)}  # fmt: skip
    names["same"] = torch.ones(6, 6) - names["eye"].float()
    exec(text, names)  # noqa: S102
    return names["loss"].detach(), torch.autograd.grad(names["loss"], names["z"])[0]


INFONCE = "sim = torch.exp(z / 0.5)\npos = sim.diag()\nneg = sim.sum(1)\nloss = -torch.log(pos / neg).mean()"
PAIRED = "p = z.exp() / (z.exp() + h.exp())\nloss = -p.log().mean()"
APART = (
    "e = torch.exp(z[:, 0])\nn = torch.exp(z[:, 1:]).sum(1, keepdim=True).squeeze(1)\n"
    "loss = -torch.log(e / (e + n + 1e-8)).mean()"
)
COX = "risk = torch.exp(z[:, 0])\ncum = torch.cumsum(risk, 0)\nll = z[:, 0] - torch.log(cum)\nloss = -ll.mean()"
MASKED = (
    "sim = torch.exp(z)\nsim = sim.masked_fill(eye, 0)\npos = (sim * same).sum(1)\n"
    "loss = -torch.log(pos / (1 + sim.sum(1))).mean()"
)
DENSITY = (
    "like = torch.exp(-d * z ** 2) / (s * math.sqrt(2 * math.pi))\ntotal = (w * like).sum(1)\n"
    "loss = -torch.log(total).mean()"
)
IWAE = "weight = torch.exp(z - h)\nloss = -weight.mean(dim=0).log().sum()"
PICKED = (
    "risk = torch.exp(z)\nown = risk.gather(1, eye.long()[:, 2:3])[:, 0]\n"
    "loss = -torch.log(risk.cumsum(1)[:, 1:].gather(1, eye.long()[:, 2:3])[:, 0] / own).mean()"
)
HANDED = (
    "def score(a, b):\n    return torch.exp(a * b / 0.5)\npos = score(z[0], h)\nneg = score(z[1:], h).sum(0)\n"
    "loss = -torch.log(pos / (pos + neg)).mean()"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [(INFONCE, 1), (INFONCE, 4), (PAIRED, 1), (PAIRED, 2), (APART, 1), (APART, 2), (APART, 3), (COX, 1), (COX, 3),
     (MASKED, 1), (DENSITY, 3), (IWAE, 1), (PICKED, 1), (PICKED, 3), (HANDED, 2)],
)  # fmt: skip
def test_the_lines_in_logarithms_give_the_same_loss_and_the_same_gradient(at, by_hand, text, line):
    told = mends.mended(facts_on(at, by_hand, text, line))
    mended = pasted(text, line, told.code)
    assert not re.search(r"\bexp\(", mended)
    for one, other in zip(run(text), run(mended), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


# The first row of the mask holds nothing, and the exponents that it leaves out are the largest.
HISTORY = (
    "kernel = torch.exp(z * 20)\nhistory = torch.tril(torch.ones_like(z), -1)\n"
    "rate = s + s * (kernel * history).sum(1)\nloss = rate.log().sum()"
)
BEHIND = "kernel = torch.exp(z)\nterms = kernel * torch.tril(same, -1)\nloss = torch.log(0.5 * s + terms.sum(1)).sum()"
FILLED = "e = torch.exp(z).masked_fill(torch.tril(same) == 0, 0)\nloss = torch.log(0.5 * s + e.sum(1)).sum()"


@pytest.mark.parametrize("text", [HISTORY, BEHIND, FILLED])
def test_rows_that_a_mask_leaves_out_wholly_have_a_gradient_in_logarithms(at, by_hand, text):
    told = mends.mended(facts_on(at, by_hand, text, 1))
    mended = pasted(text, 1, told.code)
    assert "logsumexp(" in mended
    assert mended.count("clamp_min(") == (text is not FILLED)  # a factor of a sum as a whole is as it was
    for one, other in zip(run(text), run(mended), strict=True):
        assert other.isfinite().all()
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "e = torch.exp(z)\nw = e / e.sum(-1, keepdim=True)\ny = w @ v",  # no logarithm is taken
        "e = torch.exp(z)\nm = e.mean()\nloss = e.sum(1).log() + m",  # it is used as it is as well
        "e = torch.exp(z)\ne[0] = 1.0\nloss = e.sum(1).log()",
        "e = torch.exp(z)\nfor i in range(3):\n    e = e * w\nloss = e.sum(1).log()",
        "e = torch.exp(z)\nloss = (e.sum(1) - e.diag()).log()",
        "e = torch.exp(z)\nloss = torch.log10(e.sum(1))",
        "e = torch.exp(z)\nlog(e)\nloss = f(e)",
    ],
)
def test_what_cannot_be_written_in_logarithms_throughout_is_left_alone(at, by_hand, text):
    assert mends.mended(facts_on(at, by_hand, text, 1)) is None


def test_a_name_that_is_read_elsewhere_keeps_its_meaning(at, by_hand):
    assert mends.mended(facts_on(at, by_hand, INFONCE, 1, outlive=("loss",))) is not None
    assert mends.mended(facts_on(at, by_hand, INFONCE, 1, outlive=("sim",))) is None
    assert mends.mended(facts_on(at, by_hand, f"print(sim)\n{INFONCE}", 2)) is None  # what the last step left


def test_it_is_the_first_help_where_the_exponential_overflows(at, by_hand):
    told = explain(facts_on(at, by_hand, INFONCE, 1, "torch.exp(z / 0.5)"))[1].suggestions
    assert told[0].code.splitlines() == [
        "sim = z / 0.5", "neg = torch.logsumexp(sim, dim=1)  # line 3", "loss = -(pos - neg).mean()  # line 4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low", "code"),
    [(131.0, "loss = nll.mean()"), (1.0, "loss = nll.clamp(max=20).exp().mean()")],
)
def test_a_loss_that_is_the_exponential_of_sums_gets_no_bound_that_leaves_no_gradient(at, by_hand, low, code):
    facts = facts_on(at, by_hand, "loss = nll.exp().mean()\nloss.backward()", 1, "nll.exp()")
    given = by_hand.fact(shape=(4,), min=low, max=133.0, absmax=133.0)
    facts = replace(facts, origin=replace(facts.origin, inputs=(given,)))
    around = replace(facts.look.site.around, uses=("loss.backward()",))
    look = replace(facts.look, site=Site(around=around), facts={"of_weights": True})
    assert explain(replace(facts, look=look))[1].suggestions[0].code == code


def test_another_logarithm_of_the_line_is_no_mend(at, by_hand):
    text = "p = torch.exp(-d)\nq = torch.exp(-s)\nloss = -torch.log(p).mean() - torch.log1p(-q).mean()"
    for underlined, op, told in (("torch.log1p(-q)", "log1p", False), ("torch.log(p)", "log", True)):
        found = mends.without_zeros(facts_on(at, by_hand, text, 3, underlined, op))
        assert (found is not None and "p = -d" in found.code) is told


def test_where_the_logarithm_is_that_of_0_a_mask_may_have_made_it(at, by_hand):
    told = explain(facts_on(at, by_hand, PAIRED, 2, "p.log()", "log"))[1].suggestions
    assert told[0].code == "loss = -p.mean()\np = z - torch.logaddexp(z, h)  # line 1"
    told = explain(facts_on(at, by_hand, MASKED, 4, "torch.log(pos / (1 + sim.sum(1)))", "log"))[1].suggestions
    assert "clamp_min" in told[0].code
