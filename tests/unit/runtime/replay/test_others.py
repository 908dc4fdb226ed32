"""What is found behind gradients that the script itself exchanges: whether it hangs on what other ranks put in."""

from dataclasses import replace

import pytest
from torch import nn

from nandiag.events import Looked, Site, TensorFact
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.exchanges.others import against_others, with_own
from nandiag.runtime.replay.rerun import Rerun

MODEL = nn.Linear(2, 1)
CASE = Case(3, list(MODEL.parameters()), joint=False)
ZERO, ONE = (TensorFact("norm", (), "float32", 1, absmax=size) for size in (0.0, 1.0))
FOUND = Looked(
    "found", "replay", 3, source="op", site=Site(op="aten.div.Tensor", file="train.py", line=7), inputs=(ZERO,),
    facts={"own_gradients": True},
)  # fmt: skip
FINITE = CASE.nothing("finite", "run again, it is finite")


class Op:
    def __init__(self, index):
        self.index = index


@pytest.mark.parametrize(("index", "mingled", "marked"), [(5, 4, True), (4, 4, False), (5, None, False)])
def test_what_ran_behind_an_exchange_is_marked(index, mingled, marked):
    looked = with_own(replace(FOUND, facts={}), Op(index), Rerun(mingled=mingled))
    assert (looked.facts.get("own_gradients") is True) is marked


@pytest.mark.parametrize(
    ("again", "facts"),
    [
        (replace(FOUND, inputs=(ONE,)), {"own_gradients": True, "reconstructed": True, "without_peers": "any"}),
        (FINITE, {"own_gradients": True, "reconstructed": True, "without_peers": "zeros"}),
        (replace(FOUND, site=Site(op="aten.log.default")), {"own_gradients": True, "reconstructed": True}),
        (CASE.nothing("refused", "too slow"), {"own_gradients": True, "reconstructed": True}),
        (FOUND, {}),  # the same numbers went in: they hang on nothing of the others'
    ],
)
def test_it_is_run_again_with_numbers_in_the_place_of_the_others_part(again, facts):
    asked = []
    looked = against_others(CASE, FOUND, lambda case: asked.append(case.others) or again)
    assert (looked.facts, asked) == (facts, [1.0])


@pytest.mark.parametrize(
    ("case", "looked"), [(replace(CASE, joint=True), FOUND), (CASE, FINITE), (CASE, replace(FOUND, facts={}))]
)
def test_it_is_not_run_again_in_vain(case, looked):
    told = against_others(case, looked, pytest.fail)
    assert told.facts.get("reconstructed", False) is (looked is FOUND)
