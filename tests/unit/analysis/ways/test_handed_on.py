"""What is told of a place that is known by what a rank handed on to others: where, and what to do there."""

from dataclasses import replace

from nandiag.analysis import analyse
from nandiag.analysis.causes.mends import unwritten
from nandiag.events import Sent, Site

WAY = ("send", (0, 1), 12, "0#0/0")


def got(by_hand, way=WAY):
    facts = {"carried_by": way[0], "group_ranks": list(way[1]), "handed": [way[0], list(way[1]), *way[2:]]}
    return by_hand.found(12, source="received", phase="collective", outputs=(), facts=facts)


def cast(by_hand):
    line = "    dist.send(h.detach().half(), 1)"
    site = Site(op="aten._to_copy.default", file="/w/a.py", line=17, column=(14, 31), function="main", source=line)
    facts = {"of_weights": False, "float64_finite": True, "float64_absmax": 221270.0, "dtype_max": 65504.0,
             "dtype": "float16"}  # fmt: skip
    inputs = (by_hand.fact(absmax=221270.0, max=221270.0),)
    return by_hand.found(12, phase="loss", site=site, inputs=inputs, facts=facts,
                         outputs=(by_hand.fact(posinf=3, dtype="float16"),))  # fmt: skip


def test_a_stage_of_a_pipeline_has_no_loss_and_gets_its_gradient_by_a_message(by_hand):
    first = by_hand.rank(0, Sent(*WAY, cast(by_hand)), by_hand.gradient(12))
    told = analyse(by_hand.run(first, by_hand.rank(1, by_hand.loss(12), got(by_hand)))).verdict
    assert told.summary == "+Inf born on rank 0 at step 12 in main(), in what it sent to rank 1"
    assert not any(text.startswith("No gradient goes back") for text in told.evidence)


def test_several_ranks_that_made_the_same_are_told_with_all_that_they_sent_it_to(by_hand):
    senders = [
        by_hand.rank(rank, Sent("send", (rank, rank + 2), 12, "0#0/0", cast(by_hand)), world=4) for rank in (0, 1)
    ]
    got_of = [got(by_hand, ("send", (rank, rank + 2), 12, "0#0/0")) for rank in (0, 1)]
    receivers = [by_hand.rank(rank + 2, by_hand.loss(12), got_of[rank], world=4) for rank in (0, 1)]
    told = analyse(by_hand.run(*senders, *receivers, world=4)).verdict
    assert told.summary == "+Inf born on ranks 0-1 at step 12 in main(), in what they sent to ranks 2-3"


def test_the_line_of_a_message_is_told_of_a_rank_that_sends_on_what_it_got(by_hand):
    call = Site(op="c10d::send.default", file="/w/a.py", line=17, source="dist.send(h.detach().half(), 1)")
    back = Sent("send", (1, 0), 12, "0#0/0", got(by_hand))
    first = by_hand.rank(0, Sent(*WAY, cast(by_hand), call), by_hand.gradient(12), got(by_hand, back_way()))
    told = analyse(by_hand.run(first, by_hand.rank(1, by_hand.loss(12), got(by_hand), back))).verdict
    assert {one.via for one in told.spread} == {"the message that rank 0 sent to rank 1, in line 17 of a.py"}


def back_way():
    return ("send", (1, 0), 12, "0#0/0")


def test_a_buffer_that_the_rank_itself_sends_is_not_missing_a_message(at, by_hand):
    line = "box = torch.empty(2, 12, 8)"
    facts = at("empty", (), (by_hand.fact(nan=16),), phase="data", text=line, column=(6, len(line)), file="train.py",
               extra={"handed_on": ["all_to_all_single", [0, 1]]})  # fmt: skip
    texts = [one.text for one in unwritten.left(replace(facts, world=2), "empty").suggestions]
    assert texts[0].startswith("Begin with zeros")
    assert not any("is missing" in text for text in texts)


def test_what_was_seen_only_as_it_was_sent_is_led_to_what_the_rank_gave_before_in_that_step(by_hand):
    ways = [("all_reduce", (0, 1), number, "0#0") for number in (6, 7)]
    seen = by_hand.found(
        12,
        method="message",
        source="outside",
        phase="collective",
        outputs=(),
        inputs=(by_hand.fact(nan=3),),
        reason="run again, the step is finite on this rank; x is gone",
    )
    made = by_hand.found(12, phase="data")
    last = by_hand.rank(1, Sent(*ways[0], made), Sent(*ways[1], seen), by_hand.loss(12), got(by_hand, ways[1]))
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(12), got(by_hand, ways[1])), last)).verdict
    assert (told.origin.ranks, told.origin.line, told.confidence) == ((1,), 12, "inferred")
    said = "It gave this to other ranks before in that step: that what it gave then came of it is inferred."
    assert said in told.evidence
    alone = by_hand.rank(1, Sent(*ways[1], seen), by_hand.loss(12), got(by_hand, ways[1]))
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(12), got(by_hand, ways[1])), alone)).verdict
    assert "Seen when it was sent; what made it was not among what was run again: x is gone." in told.evidence


def test_gradients_that_are_added_up_by_hand_are_divided_before_the_sum(by_hand):
    line = "            dist.all_reduce(p.grad)"
    site = Site(op="c10d.allreduce_.default", file="/w/a.py", line=10, column=(12, 35), function="step", source=line)

    def look(largest):
        facts = {"carried_by": "all_reduce", "group": "default_pg", "group_ranks": [0, 1], "number": 2, "joint": True,
                 "sent_dtype": "float16", "sent_absmax": largest}  # fmt: skip
        return by_hand.found(10, source="received", phase="collective", site=site, inputs=(), outputs=(), facts=facts)

    logs = [by_hand.rank(at, by_hand.gradient(10), look(size)) for at, size in enumerate((19520.0, 59360.0))]
    told = analyse(by_hand.run(*logs)).verdict
    assert told.cause == "collective_overflow"
    assert told.suggestions[0].code == "p.grad /= dist.get_world_size()\ndist.all_reduce(p.grad)"
    assert not any("MixedPrecisionPolicy" in (one.code or "") for one in told.suggestions)
