"""What a communication hook that is called again tells where it shows no origin."""

from types import SimpleNamespace

import pytest
import torch

from nandiag.events import Looked
from nandiag.runtime.replay import hooked


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("nan"), "bad values came from the hook's own state"), (1.0, "all that came out of it was finite")],
)
def test_why_a_hook_called_again_shows_nothing_is_told(value, shown):
    tracer = SimpleNamespace(bad=lambda one: bool(one.isnan().any()), writer=lambda _: None)
    looked = Looked("finite", "replay", 5, reason="finite on this rank", facts={"collective": "mine"})
    told = hooked._told(None, SimpleNamespace(tracer=tracer), [torch.full((2,), value)], looked)
    assert told.facts == {"collective": "mine", "hook_again": shown}
    assert told.reason == f"finite on this rank; called again, {shown}"
