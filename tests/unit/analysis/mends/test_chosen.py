"""What is -inf on both sides of a difference: log-probabilities of what a mask forbids, or a softmax in blocks."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site, Statement
from tests.unit.analysis.mends.told import placed

MASKED = {"masked_at": ["/home/me/ppo.py", 25], "masked_text": "z = z.masked_fill(~mask, -inf)"}
PICKED = {"made_by": ["SqueezeBackward1", "GatherBackward0", "LogSoftmaxBackward0"]}


def difference(at, by_hand, line, expression, *names, extra=None, shape=(64,), nan=2, block=(), **made):
    given = tuple(by_hand.fact(neginf=2, shape=shape, max=0.0) for _ in range(2))
    out = by_hand.fact(nan=nan, shape=shape, first_bad=(32,) if len(shape) == 1 else (32, 0), **made)
    facts = at("sub", given, (out,), extra=extra, **placed(line, expression))
    around = Around(tuple(Meaning(name, text, "train.py", 3) for name, text in names), block=block)
    return explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1]


LINE = ("ratio = torch.exp(lp - r.logp)", "lp - r.logp")


@pytest.mark.parametrize(
    ("extra", "names", "slug", "says"),
    [
        (PICKED | MASKED, (), "masked_infinity", "both are -inf at [32]: what was chosen there has probability 0"),
        ({}, [("lp", "policy.log_probs(o, m).gather(1, a[:, None]).squeeze(1)")], "domain_error", "both are -inf at"),
        (MASKED, [("lp", "dist.log_prob(action)")], "masked_infinity", "both are -inf at [32]"),
        (MASKED, [("lp", "logp[torch.arange(n), act]")], "masked_infinity", None),
    ],
)
def test_a_choice_that_a_mask_forbids_is_no_softmax_in_blocks(at, by_hand, extra, names, slug, says):
    found = difference(at, by_hand, *LINE, *names, extra=extra)
    assert not any("block" in text for text in (*found.evidence, *(one.text for one in found.suggestions)))
    assert not any("finfo" in (one.code or "") for one in found.suggestions)
    if says is not None:
        assert (found.slug, found.evidence[0].startswith(says)) == (slug, True)
        assert found.suggestions[0].code == "ratio = torch.exp((lp - r.logp).masked_fill(r.logp.isinf(), 0.0))"
        assert "no gradient" in found.suggestions[0].text
        assert "mask" in found.suggestions[1].text
    assert ("The -Inf was written at ppo.py:25." in found.evidence) is bool(extra)


def test_a_difference_of_one_column_of_picked_scores_is_no_maximum(at, by_hand):
    found = difference(at, by_hand, *LINE, extra=PICKED, shape=(64, 1))
    assert found.evidence[0].startswith("both are -inf at [32, 0]")


def test_where_an_infinity_came_out_as_well_the_place_is_not_told(at, by_hand):
    found = difference(at, by_hand, *LINE, extra=PICKED, neginf=1)
    assert found.evidence[0].startswith("both are -inf in 2 values: what was chosen there has probability 0")


@pytest.mark.parametrize(
    ("names", "block"),
    [
        ([("new", "torch.maximum(m, s.amax(-1, keepdim=True))")], ()),
        ([], (Statement(3, "new = torch.maximum(m, s.amax(-1, keepdim=True))"),)),
        ([("new", "peak"), ("m", "scores.max(-1).values")], ()),
    ],
)
def test_a_running_maximum_is_told_as_a_softmax_in_blocks(at, by_hand, names, block):
    found = difference(at, by_hand, "a = torch.exp(m - new)", "m - new", *names, shape=(12, 1), block=block)
    assert (found.slug, "block" in found.evidence[0]) == ("attention_fully_masked", True)


def test_what_nothing_tells_to_be_a_maximum_is_a_difference(at, by_hand):
    found = difference(at, by_hand, "a = torch.exp(m - new)", "m - new", shape=(12, 1))
    assert (found.slug, found.evidence[0]) == ("domain_error", "-Inf less -Inf in the same place is NaN")


def test_the_mend_of_a_forbidden_choice_leaves_the_other_gradients_as_they_are():
    def grad(forbidden):
        z = torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]], requires_grad=True)
        mask = torch.tensor([[False, False, True], [False, False, True]])
        logp = z.masked_fill(mask, float("-inf")).log_softmax(-1)
        lp = logp.gather(1, torch.tensor([[0], [2 if forbidden else 1]]))[:, 0]
        old = lp.detach().clone()
        (torch.exp((lp - old).masked_fill(old.isinf(), 0.0)) * torch.tensor([1.0, 2.0])).sum().backward()
        return z.grad

    assert torch.equal(grad(True)[0], grad(False)[0])
    assert torch.equal(grad(True)[1], torch.zeros(3))
