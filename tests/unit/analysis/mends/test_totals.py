"""An exponential that its own total divides some lines on: the largest exponent is subtracted, and cancels."""

import ast
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site, Statement
from tests.unit.analysis.mends.told import placed

LINE, CALL = "Q = torch.exp(out / eps).t()", "torch.exp(out / eps)"
TOTAL = "s = Q.sum()\nQ /= s"


def told(at, by_hand, rest, line=LINE, call=CALL, of_weights=False, outlive=()):
    tree = ast.parse(f"{line}\n{rest}").body
    around = Around(block=tuple(Statement(one.lineno, ast.unparse(one)) for one in tree), outlive=outlive)
    big = by_hand.fact(max=130.0, absmax=130.0)
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), extra={"of_weights": of_weights}, **placed(line, call))
    return explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1].suggestions


@pytest.mark.parametrize(
    ("rest", "line", "call"),
    [
        (TOTAL, LINE, CALL),
        ("K = Q.shape[0]\nQ = Q / Q.sum()\nfor i in range(3):\n    Q /= Q.sum(0)", LINE, CALL),
        (TOTAL, "Q = f(out).exp()", "f(out).exp()"),
        ("s = Q.sum()\ndist.all_reduce(s)\nQ /= s", LINE, CALL),
    ],
)
@pytest.mark.parametrize("of_weights", [True, False])
def test_the_largest_exponent_is_subtracted_first_and_the_quotient_is_the_same(
    at, by_hand, rest, line, call, of_weights
):
    first = told(at, by_hand, rest, line, call, of_weights)[0]
    assert "divided by its own sum" in first.text
    assert ("clamp_min(-60)" in first.code) is ("for i" in rest)
    assert ("op=dist.ReduceOp.MAX" in first.code) is ("all_reduce" in rest)
    found = []
    for text in (line, first.code):
        dist = SimpleNamespace(all_reduce=lambda *_, **__: None, ReduceOp=SimpleNamespace(MAX="max"))
        names = {"torch": torch, "dist": dist, "out": torch.arange(12.0).view(3, 4), "eps": 0.5, "f": lambda x: 2 * x}
        exec(f"{text}\n{rest}", names)  # noqa: S102
        found.append(names["Q"])
    assert torch.allclose(*found)


@pytest.mark.parametrize(
    ("rest", "outlive"),
    [
        ("m = Q.mean()\ns = Q.sum()\nQ /= s", ()),
        ("s = Q.sum() + 1\nQ /= s", ()),
        ("s = Q.sum()\ns += 1\nQ /= s", ()),
        ("s = Q.sum()\nP = Q / s\nprint(Q)", ()),
        (TOTAL, ("Q",)),
    ],
)
def test_what_more_is_made_of_is_told_as_before(at, by_hand, rest, outlive):
    assert not any(
        "divided by its own sum below: subtract" in one.text for one in told(at, by_hand, rest, outlive=outlive)
    )


PARTS = "d = e.sum(-1)\ndist.all_reduce(d)\np = e / d[:, None]\nreturn (d.log() - z[:, 0]).mean()"


def test_the_logarithm_of_a_sum_over_ranks_has_the_largest_of_all_ranks_added_back(at, by_hand):
    first = told(at, by_hand, PARTS, "e = z.exp()", "z.exp()")[0]
    assert "add it back behind the logarithm" in first.text
    assert first.code.splitlines() == [
        "top_exponent = z.amax(-1, keepdim=True)",
        "dist.all_reduce(top_exponent, op=dist.ReduceOp.MAX)",
        "e = (z - top_exponent).exp()",
        "return (d.log() + top_exponent.squeeze(-1) - z[:, 0]).mean()",
    ]
    other = told(at, by_hand, PARTS + "\nf(e)", "e = z.exp()", "z.exp()")[0]
    assert "behind the logarithm" not in other.text


GROUPED = (
    "total = torch.zeros(4).index_add(0, dst, w)\nalpha = w / total[dst]",
    "total = torch.zeros(4).scatter_add_(0, dst, w)\nalpha = w / (total.gather(0, dst) + 1e-16)",
)


@pytest.mark.parametrize("rest", GROUPED)
@pytest.mark.parametrize("heads", [0, 2])
def test_a_softmax_over_groups_has_the_largest_of_each_group_subtracted(at, by_hand, rest, heads):
    shape = (6, heads) if heads else (6,)
    if heads:
        rest = rest.replace("zeros(4)", "zeros(4, 2)")
    big = by_hand.fact(max=165.0, absmax=165.0, min=-40.0, shape=shape)
    tree = ast.parse(f"w = torch.exp(score)\n{rest}").body
    around = Around(block=tuple(Statement(one.lineno, ast.unparse(one)) for one in tree))
    line = placed("w = torch.exp(score)", "torch.exp(score)")
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), extra={"of_weights": True}, **line)
    first = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1].suggestions[0]
    assert "a softmax over groups" in first.text
    assert "clamp" not in first.code
    dst = torch.tensor([0, 0, 1, 1, 2, 3])
    dst = dst[:, None].expand(6, 2) if heads and "scatter" in rest else dst
    score = torch.tensor([165.0, 160.0, -40.0, -41.0, 3.0, -30.0])
    score = torch.stack([score, -score], 1) if heads else score
    names = {"torch": torch, "score": score, "dst": dst}
    exec(f"{first.code}\n{rest}", names)  # noqa: S102 - the tests' own
    wanted = torch.cat([torch.softmax(score[a:b], 0) for a, b in ((0, 2), (2, 4), (4, 5), (5, 6))])
    assert torch.allclose(names["alpha"], wanted)


@pytest.mark.parametrize("own", ["top", "top_exponent", "largest_exponent"])
@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("Q = f(out).exp()", "s = Q.sum()\ndist.all_reduce(s)\nQ /= s"),
        ("e = z.exp()", PARTS),
        ("w = score.exp()", GROUPED[0]),
    ],
)
def test_the_largest_is_given_no_name_that_the_script_has(at, by_hand, line, rest, own):
    """The script keeps a number of its own by that name from step to step."""
    first = told(at, by_hand, f"{rest}\n{own} = max({own}, 1.0)", line, line.partition(" = ")[2], of_weights=True)[0]
    bound = [one.id for one in ast.walk(ast.parse(first.code.partition("\nreturn")[0])) if isinstance(one, ast.Name)]
    assert bound[0].endswith("_exponent")
    assert own not in bound


@pytest.mark.parametrize(
    "rest",
    [
        "total = torch.zeros(4)\ntotal.index_add_(0, dst, w)\nalpha = w / total[dst]",
        "total = torch.bincount(dst, weights=w)\nalpha = w / total[dst]",
        "total = scatter(w, dst, reduce='sum')\nalpha = w / total[dst]",
        f"{GROUPED[0]}\nloss = alpha.sum() + w.mean()",
        f"dst = dst + 1\n{GROUPED[0]}",
    ],
)
def test_where_the_text_does_not_tell_how_it_is_told_in_prose_and_nothing_is_clamped(at, by_hand, rest):
    suggestions = told(at, by_hand, rest, "w = torch.exp(score)", "torch.exp(score)", of_weights=True)
    assert [one.code for one in suggestions] == [None]
    assert "a softmax over groups" in suggestions[0].text


@pytest.mark.parametrize("rest", ["total = torch.zeros(4).index_add(0, dst, w)\ny = w * total[dst]", "y = w / n[dst]"])
def test_what_no_sum_of_its_own_divides_is_none(at, by_hand, rest):
    suggestions = told(at, by_hand, rest, "w = torch.exp(score)", "torch.exp(score)", of_weights=True)
    assert all("over groups" not in one.text for one in suggestions)
