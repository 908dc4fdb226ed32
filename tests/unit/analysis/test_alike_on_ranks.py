"""What is to be done alike on all ranks: who sends what, and who leaves out an empty share of a batch."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site
from tests.unit.analysis.ops.told import on

LOSS = "loss = criterion(model(x), y)"


def handed_out(at, by_hand, use, received):
    known = at("empty", (), (by_hand.fact(nan=16),), phase="data", **on("w = torch.empty(n)", "torch.empty(n)"))
    site = Site(op="aten.empty.memory_format", around=Around(uses=(use,)))
    return explain(replace(known, look=replace(known.look, site=site), received=received))[1].suggestions


@pytest.mark.parametrize(
    ("use", "received", "sent"),
    [
        ("dist.broadcast(w, src=0 if first else 1)", (1,), True),
        ("dist.broadcast(w, src=0 if first else 1)", (), False),
        ("dist.broadcast(other, src=0)", (1,), False),
        ("y = w * 2", (1,), False),
    ],
)
def test_what_a_rank_sent_unwritten_is_to_come_from_a_rank_that_fills_it(at, by_hand, use, received, sent):
    first = handed_out(at, by_hand, use, received)[0]
    assert (first.code is None and use in first.text) is sent
    assert (first.code == "w = torch.zeros(n)") is not sent


@pytest.mark.parametrize("world", [1, 2])
def test_an_empty_share_of_a_batch_is_left_out_by_all_ranks_or_by_none(at, by_hand, world):
    empty, bad = by_hand.fact(shape=(0, 1)), by_hand.fact(nan=1, shape=())
    known = at("mse_loss", (empty,), (bad,), phase="loss", module_class="MSELoss", **on(LOSS, LOSS[7:]))
    first, *rest = explain(replace(known, world=world))[1].suggestions
    assert first.code == "loss = criterion(model(x), y) if y.numel() else 0 * model(x).sum()"
    assert any("on all of them alike" in one.text for one in rest) is (world > 1)


def test_no_name_is_made_up_where_the_line_is_known(at, by_hand):
    empty, bad = by_hand.fact(shape=(0, 1)), by_hand.fact(nan=1, shape=())
    line = "loss = criterion(*pair)"
    known = at("mse_loss", (empty,), (bad,), phase="loss", module_class="MSELoss", **on(line, line[7:]))
    assert explain(known)[1].suggestions[0].code is None
