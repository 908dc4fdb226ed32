"""Of a weight that a step began bad it is told which message had filled its memory."""

import pytest
import torch

from nandiag.events import Looked
from nandiag.runtime.collectives.messages import ARRIVALS, Message
from nandiag.runtime.look.finite import fact
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.update.weights import of_weights


@pytest.mark.parametrize("source", ["parameter", "op"])
def test_the_message_that_filled_a_weight_is_told_where_that_was_met_bad(source):
    weight = torch.nn.Parameter(torch.tensor([1.0, float("inf")]))
    ARRIVALS.note(weight.data, Message("broadcast", (0, 1), 15, "0#0"))
    met = fact(weight, "a weight")  # no module is there to name it by
    looked = Looked("found", "replay", 5, source=source, inputs=(met,))
    told = of_weights(Case(5, [weight], joint=False), [], [], looked, midway=False)
    assert told.facts["began_bad"] == ["a weight"]
    assert told.facts.get("filled_by") == (["broadcast", [0, 1], 15, "0#0"] if source == "parameter" else None)
