"""A loss that was made of what a collective had not written yet: its line is told, and no device is blamed."""

from nandiag.analysis import analyse
from nandiag.events import Looked, Site


def test_the_line_that_read_too_early_is_told_and_no_hardware_is(by_hand):
    site = Site(file="train.py", line=26, source="loss = total / count")
    facts = {"complete": True, "under_way": "all_reduce", "under_way_at": ["train.py", 23]}
    look = Looked("finite", "replay", 3, site=site, facts=facts)
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.finite(3)), by_hand.rank(1, by_hand.loss(3), look))).verdict
    told = " ".join((*verdict.evidence, *(one.text for one in verdict.suggestions)))
    assert (verdict.origin.ranks, verdict.origin.line) == ((1,), 26)
    assert "reads what the all_reduce of line 23 writes, which was not waited for by then" in told
    assert verdict.suggestions[0].code == "work.wait()"
    assert not any(word in told for word in ("memory of the host", "same device", "asked whether"))


def test_a_device_that_struck_twice_is_not_blamed_for_reading_too_early(by_hand):
    facts = {"complete": True, "under_way": "all_reduce", "under_way_at": ["train.py", 23]}
    site = Site(file="train.py", line=26, source="loss = total / count")
    seen = [(by_hand.loss(step), Looked("finite", "replay", step, site=site, facts=facts)) for step in (3, 5)]
    second = by_hand.rank(1, *(one for pair in seen for one in pair))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.finite(3)), second)).verdict
    assert verdict.cause != "hardware_corruption"
    assert verdict.suggestions[0].code == "work.wait()"


def test_a_message_that_was_not_waited_for_is_not_said_to_have_been_bad(by_hand):
    site = Site(file="train.py", line=26, source="loss = (net(x) - target).square().mean()")
    facts = {
        "carried_by": "send", "group_ranks": [0, 1], "handed": ["send", [0, 1], 3, "0#0/0"], "given_finite": False,
        "as_it_came": True, "under_way": "irecv", "under_way_at": ["train.py", 23], "unwaited": True,
    }  # fmt: skip
    look = Looked("found", "replay", 3, phase="collective", source="received", site=site, facts=facts)
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.finite(3)), by_hand.rank(1, by_hand.loss(3), look))).verdict
    told = " ".join((*verdict.evidence, *(one.text for one in verdict.suggestions)))
    assert (verdict.origin.ranks, verdict.origin.line) == ((1,), 26)
    assert "uses what the irecv of line 23 fills before wait() of it" in told
    assert verdict.suggestions[0].code == "work.wait()"
    assert not any(word in told for word in ("bad already", "hand to this one", "what made it is not known"))
