"""A step that is finite when it is run again, for it read what a collective had not written yet."""

import math
from types import SimpleNamespace

import pytest
import torch

from nandiag.events import Looked
from nandiag.runtime.replay.finite.early import with_read_under_way
from nandiag.runtime.tape.entry import CALL
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.packed.words import Given

FINITE = Looked("finite", "replay", 3, facts={"complete": True})


@pytest.mark.parametrize(
    ("name", "number", "waited", "told"),
    [
        ("div", 2, 3, True), ("div", 2, math.inf, True), ("div", 4, 3, False), ("view", 2, 3, False),
        ("div", 0, math.inf, False),
    ],
)  # fmt: skip
def test_a_read_between_a_collective_and_its_wait_is_told(name, number, waited, told):
    count = torch.ones(1)
    at = SimpleNamespace(begun=1, waited=waited, tensors=[lambda: count])
    entry = SimpleNamespace(kind=CALL, name=name, number=number, words=[Given(count, False)], frames=(), micro_step=0)
    looked = with_read_under_way(FINITE, [Exchange("all_reduce", [], 0, under_way=at)], [entry])
    assert (looked.facts.get("under_way") == "all_reduce") is told
    assert (looked.site is not None) is told


def test_another_tensor_is_no_matter():
    count, other = torch.ones(1), torch.ones(1)
    at = SimpleNamespace(begun=1, waited=3, tensors=[lambda: count])
    entry = SimpleNamespace(kind=CALL, name="div", number=2, words=[Given(other, False)], frames=(), micro_step=0)
    assert with_read_under_way(FINITE, [Exchange("all_reduce", [], 0, under_way=at)], [entry]) is FINITE
