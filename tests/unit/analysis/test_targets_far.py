"""A gradient that outgrew the outlier of its batch by far: the targets, which nobody looked at, come first."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Harm, History, Site, Warned

STEPS = 12


def told(by_hand, *, grown, size=474.0, loss=2.0):
    history = History(
        tuple(range(STEPS)), (*(2.0,) * (STEPS - 1), loss), (*(9.0,) * (STEPS - 1), float("inf")), (1e-3,) * STEPS,
        (None,) * STEPS,
    )  # fmt: skip
    square = by_hand.fact(max=grown, absmax=grown, shape=(4,))
    look = by_hand.found(
        STEPS - 1, phase="optimizer", outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=1e3), square, square),
        site=Site(None, None, "aten.addcmul_.default"),
        facts={"reconstructed": True, "parameters": ["fc.weight"], "float64": 1e39},
    )  # fmt: skip
    facts = {"size": size, "largest": 1.0, "batches": STEPS - 1, "deviations": 263.0, "sample": 2, "samples": 8}
    bad = Harm(
        "optimizer_state", STEPS - 1, "optimizer", (by_hand.fact("v of fc.weight", posinf=4),), 1, 2,
        optimizer="Adam", names={"model": "net"}, since=3,
    )  # fmt: skip
    log = by_hand.rank(0, Warned("batch_outlier", STEPS - 1, facts, "x"), bad, look, history, world=1)
    return analyse(by_hand.run(log, world=1)).verdict


def test_the_targets_are_named_first_and_the_gradients_clipped(by_hand):
    verdict = told(by_hand, grown=1.2e21)
    first, second = verdict.suggestions
    assert (verdict.cause, verdict.mechanism) == ("data_outlier", "overflow")
    assert first.text.startswith("Look at the targets and weights of step 11 first")
    assert second.code == "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    assert any("Gradients of 1.2e21, where their norm was about 9 before" in text for text in verdict.evidence)
    assert any("holds a value of size 474" in text for text in verdict.evidence)


@pytest.mark.parametrize("more", [{"grown": 1e11}, {"grown": 1.2e21, "size": 3e6}])
def test_what_makes_the_gradient_by_itself_is_clipped_as_before(by_hand, more):
    assert any("x.clamp(" in (one.code or "") for one in told(by_hand, **more).suggestions)


def test_where_loss_and_gradients_grew_alike_it_is_an_exponential_of_the_inputs(by_hand):
    verdict = told(by_hand, grown=3e36, loss=1.4e34)
    assert verdict.cause == "data_outlier"
    assert not any("targets" in text for text in (*verdict.evidence, *(one.text for one in verdict.suggestions)))
    assert any("an exponential of what grows with the inputs" in text for text in verdict.evidence)
    assert any("x.clamp(" in (one.code or "") for one in verdict.suggestions)


def test_where_the_loss_grew_more_than_the_gradients_it_is_the_targets(by_hand):
    first = told(by_hand, grown=1.2e21, loss=1e37).suggestions[0]
    assert first.text.startswith("Look at the targets and weights of step 11 first")
