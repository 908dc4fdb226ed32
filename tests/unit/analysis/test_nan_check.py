"""A rank that torch's own NaN check ended: it is the owner, and no more is said than the check said."""

from nandiag.analysis import analyse
from nandiag.analysis.findings import _said
from nandiag.events import Looked, Raised, Site

SAID = Raised("RuntimeError", "Function 'SqrtBackward0' returned nan values in its 0th output.", "Traceback", 3)
LOST = Raised("RuntimeError", "Connection closed by peer [127.0.0.1]:1", "Traceback", 3)
SITE = Site(node="SqrtBackward0", file="train.py", line=15, function="forward", source="    return x.sqrt()")
LOOK = Looked("found", "check", 3, phase="backward", site=SITE, facts={"output": 0})


def of_two(by_hand, *before):
    return analyse(
        by_hand.run(
            by_hand.rank(0, LOST, steps=3),
            by_hand.rank(1, *before, LOOK, SAID, steps=3),
            ends=(by_hand.ended(1, code=1), by_hand.ended(0, signal=15, by_launcher=True)),
        )
    )


def test_the_rank_that_raised_is_the_origin_and_its_peer_a_victim(by_hand):
    report = of_two(by_hand)
    origin = report.verdict.origin
    assert report.verdict.anomaly
    assert (origin.ranks, origin.step, origin.phase, origin.node) == ((1,), 3, "backward", "SqrtBackward0")
    assert (origin.file, origin.line, origin.kind, origin.module) == ("train.py", 15, "nan", None)
    assert {rank: state.state for rank, state in report.ranks.items()} == {"0": "victim", "1": "raised"}


def test_it_was_observed_and_not_reproduced_and_nothing_was_born(by_hand):
    verdict = of_two(by_hand).verdict
    assert (verdict.confidence, verdict.reproduced) == ("observed", None)
    assert verdict.summary == "NaN first seen on rank 1 at step 3 in backward, SqrtBackward0"
    assert any("NaN check" in text for text in verdict.evidence)
    assert any("Leave detect_anomaly away" in one.text for one in verdict.suggestions)


def test_a_step_that_was_not_run_again_is_promised_no_cause(by_hand):
    """A relu's backward may throw that NaN away: without the check nothing goes bad then, and nothing is named."""
    (told,) = (one.text for one in of_two(by_hand).verdict.suggestions if "detect_anomaly" in one.text)
    assert "names the op" not in told
    assert "whether this NaN does harm" in told
    assert "goes no further" in told


def test_a_loss_that_was_bad_already_points_to_the_forward(by_hand):
    told = [text for text in of_two(by_hand, by_hand.loss(3)).verdict.evidence if "before that backward" in text]
    assert len(told) == 1
    assert not any("before that backward" in text for text in of_two(by_hand).verdict.evidence)


def test_a_replay_of_the_same_step_goes_before_the_check(by_hand):
    verdict = of_two(by_hand, by_hand.found(3)).verdict
    assert (verdict.origin.op, verdict.confidence) == ("aten.log.default", "reproduced")


def test_a_step_that_is_finite_without_the_check_came_to_no_harm(by_hand):
    again = Looked("finite", "replay", 3, reason="run again, the step is finite", facts={"unchecked": True})
    verdict = of_two(by_hand, again).verdict
    assert (verdict.origin.line, verdict.origin.node, verdict.cause) == (15, "SqrtBackward0", "unknown")
    assert "the step was finite" in verdict.evidence[0]
    assert "by one that goes no further" in verdict.suggestions[0].text


def test_a_rank_whose_replay_received_the_damage_did_not_go_bad_by_itself(by_hand):
    """The check stopped both ranks, each in its own backward."""
    received = {"carried_by": "all_gather", "group_ranks": [0, 1], "number": 3}
    came = Looked("found", "replay", 3, 0, phase="collective", source="received", facts=received)
    report = analyse(
        by_hand.run(
            by_hand.rank(0, by_hand.loss(3), LOOK, came, SAID, steps=3),
            by_hand.rank(1, by_hand.loss(3), LOOK, by_hand.found(3), SAID, steps=3),
            ends=(by_hand.ended(1, code=1), by_hand.ended(0, code=1)),
        )
    )
    assert report.verdict.origin.ranks == (1,)
    assert any("What rank 0 got from other ranks was bad already" in text for text in report.verdict.evidence)
    assert not any("by itself" in text for text in report.verdict.evidence)


def test_the_first_line_of_a_message_ends_where_what_it_leads_to_is_left_out():
    message = "Expected parameter loc, but found invalid values:\ntensor([nan, nan])"
    assert _said(Raised("ValueError", message, "Traceback", 3)) == (
        "ValueError: Expected parameter loc, but found invalid values"
    )
