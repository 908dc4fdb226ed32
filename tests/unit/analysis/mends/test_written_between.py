"""A name that something was written into behind the line that made it is not what that line made."""

from dataclasses import replace

import pytest

from nandiag.events import Around, Meaning, Site, Statement
from tests.unit.analysis.mends.told import advice, placed

LINE = "loss = (net(x) - t.log()).abs().mean()"


def logged(at, by_hand, made, between):
    block = (*(Statement(3 + number, one) for number, one in enumerate([made, *between])), Statement(7, LINE))
    facts = at("log", (by_hand.fact(zeros=1, min=0.0),), (by_hand.fact(neginf=1),), line=7, **placed(LINE, "t.log()"))
    kinds = (Meaning("t", made.partition(" = ")[2], "train.py", 3),)
    around = Around(block=block, kinds=kinds)
    return advice(replace(facts, look=replace(facts.look, site=Site(around=around))))


@pytest.mark.parametrize(
    "between",
    [
        ["if step in (17, 30):\n    t[3] = 0.0"],
        ["t[3] = 0.0"],
        ["t.data[3] = 0.0"],
        ["row = t[3]", "row[:] = 0.0"],
        ["for k in gone:\n    t[k] *= 0"],
        ["with torch.no_grad():\n    spoil(t)"],
    ],
)
def test_zeros_that_were_written_behind_an_exponential_are_not_its_own(at, by_hand, between):
    told = logged(at, by_hand, "t = x[:, :1].exp()", between)
    assert [one.code for one in told] == ["loss = (net(x) - t.clamp_min(1e-12).log()).abs().mean()"]
    assert not any("exponential" in one.text for one in told)


@pytest.mark.parametrize("between", [[], ["seen[k] = 1"], ["y = x + 1"]])
def test_an_exponential_that_nothing_was_written_into_is_mended_by_its_exponent(at, by_hand, between):
    told = logged(at, by_hand, "t = x[:, :1].exp()", between)
    assert told[0].code == "loss = (net(x) - t).abs().mean()\nt = x[:, :1]  # line 3"
