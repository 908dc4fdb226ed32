"""What overflowed at a point that an optimizer with a closure went to by a whole step."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY
from nandiag.events import Harm, History, Trainer


def within_a_step(at, by_hand, losses, *, searches=False, **rest):
    many = len(losses)
    past = History((4, *[5] * many), (11.0, *losses), (None,) * (many + 1), (1.0,) * (many + 1), (None,) * (many + 1),
                   optimizer=(0, *[1] * many), trainers=(Trainer("SGD", "warm"), Trainer("LBFGS", "opt")))  # fmt: skip
    big = by_hand.fact(max=134154.0, absmax=134154.0)
    facts = at("exp", (big,), (by_hand.fact(posinf=1),), phase="forward", module="", history=past, **rest)
    harm = Harm("loss", 5, "loss", (), 1, 1, optimizer="LBFGS", names={"optimizer": "opt"}, searches=searches)
    return replace(facts, harm=harm)


def test_a_later_evaluation_is_at_a_point_that_the_optimizer_made(at, by_hand):
    story = explain(within_a_step(at, by_hand, [8753.0, 1.26e6, float("nan")]))[0]
    assert (story.slug, story.strength, story.leads) == ("lr_divergence", LIKELY, True)
    assert "evaluation 3 of its closure in this step (the loss was 8753, 1.26e6 before)" in story.evidence[0]
    assert story.suggestions[0].code == 'opt = torch.optim.LBFGS(..., line_search_fn="strong_wolfe")'


@pytest.mark.parametrize(
    ("losses", "searches", "extra"),
    [
        ([float("nan")], False, {}),
        ([8753.0, float("nan")], True, {}),
        ([8753.0, float("nan")], None, {}),
        ([8753.0, float("nan")], False, {"of_weights": False}),
    ],
)
def test_the_first_evaluation_and_one_behind_a_search_are_of_no_whole_step(at, by_hand, losses, searches, extra):
    story = explain(within_a_step(at, by_hand, losses, searches=searches, extra=extra))[0]
    assert story is None or "line search" not in story.evidence[0]


def test_evaluations_within_a_step_are_no_course_of_the_run(at, by_hand):
    facts = within_a_step(at, by_hand, [0.0065, 1.2, 8300.0, 1.66e7])
    past = History((1, 2, 2, 2, 2), (0.0065, 0.0064, 1.2, 8300.0, 1.66e7), (0.1857, 0.2, 40.0, 1e6, 1.29e9),
                   (1.0,) * 5, (None,) * 5, optimizer=(0,) * 5)  # fmt: skip
    facts = replace(facts, history=past, harm=replace(facts.harm, step=2), origin=replace(facts.origin, step=2))
    story = explain(facts)[0]
    assert story.slug == "lr_divergence"
    assert "evaluation 5 of its closure" in story.evidence[0]
    assert explain(replace(facts, harm=replace(facts.harm, searches=None)))[0].slug == "gradient_explosion"
