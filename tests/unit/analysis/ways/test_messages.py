"""A rank that handed bad values on is the origin where another one's harm came by that very message."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Sent, Site

IN_STEP = "all_gather, collective 0 of the step"


def received(by_hand, step, *handed):
    facts = {"carried_by": "send", "group_ranks": list(handed[1]), "handed": [handed[0], list(handed[1]), *handed[2:]]}
    return by_hand.found(step, source="received", phase="collective", outputs=(), facts=facts)


def report(by_hand, sent, look, *more):
    logs = (by_hand.rank(0, sent, world=3), by_hand.rank(1, by_hand.loss(5), look, world=3), *more)
    return analyse(by_hand.run(*logs, world=3))


def test_the_sender_is_the_origin_with_the_step_of_the_harm(by_hand):
    sent = Sent("send", (0, 1), 5, "0#0/0", by_hand.found(0))
    told = report(by_hand, sent, received(by_hand, 5, "send", (0, 1), 5, "0#0/0"))
    assert (told.verdict.origin.ranks, told.verdict.origin.step, told.verdict.origin.line) == ((0,), 5, 12)
    assert told.verdict.cause == "log_of_zero"
    assert "What rank 1 got from other ranks was bad already." in told.verdict.evidence


def test_a_rank_that_put_it_into_a_sum_is_the_origin_though_it_saw_no_harm(by_hand):
    """Its own look, at gradients that came from the other one, was finite."""
    sent = Sent("all_reduce", (0, 1, 2), 7, "0#0", by_hand.found(5))
    told = report(by_hand, sent, received(by_hand, 5, "all_reduce", (0, 1, 2), 7, "0#0"))
    assert (told.verdict.origin.ranks, told.verdict.origin.line) == ((0,), 12)
    assert "What rank 1 got from other ranks was bad already." in told.verdict.evidence


def test_what_was_put_in_a_step_before_it_came_back_has_its_step(by_hand):
    """An all_reduce that is begun in one step and waited for in the next: the rank only received it there, too."""
    way = ("all_reduce", (0, 1), 7, "0#0")
    sent = Sent(*way, by_hand.found(4))
    first = by_hand.rank(0, sent, by_hand.loss(5), received(by_hand, 5, *way))
    told = analyse(by_hand.run(first, by_hand.rank(1, by_hand.loss(5), received(by_hand, 5, *way))))
    assert told.verdict.origin.ranks == (0,)
    assert "born on rank 0 at step 4" in told.verdict.summary
    assert told.verdict.summary.endswith("used at step 5")


def test_an_infinity_that_the_receiver_made_nan_of_leads_to_the_rank_that_computed_it(by_hand):
    way = ("send", (0, 1), 5, "0#0/0")
    turned = by_hand.found(5, phase="backward", facts={"fed": True, "handed": [way[0], list(way[1]), *way[2:]]})
    told = report(by_hand, Sent(*way, by_hand.found(0)), turned)
    assert (told.verdict.origin.ranks, told.verdict.origin.step) == ((0,), 5)
    assert "What rank 1 got from other ranks was bad already." in told.verdict.evidence
    alone = report(by_hand, by_hand.loss(5), turned)
    assert alone.verdict.origin.ranks == (1,)


def test_the_spread_names_the_one_way_that_carried_what_nobody_could_lead_back(by_hand):
    """A gather of a step before, of which a memory bank still held the bad rows."""
    sent = Sent("all_gather", (0, 1), 7, "0#0", by_hand.found(4))
    outside = by_hand.found(5, source="outside", phase="data", outputs=())
    first, second = by_hand.gradient(5), by_hand.gradient(5)
    told = analyse(by_hand.run(by_hand.rank(0, sent, first, by_hand.finite(5)), by_hand.rank(1, second, outside)))
    assert told.verdict.origin.ranks == (0,)
    assert [one.via for one in told.verdict.spread] == ["all_gather in the group of ranks 0-1"]


@pytest.mark.parametrize(
    ("loss", "ways"),
    [
        (2.5, ["all_gather in the group of ranks 0-1", "the gradient exchange"]),
        (None, ["all_gather in the group of ranks 0-1", f"{IN_STEP} in the group of ranks 0-1"]),  # not known
    ],
)
def test_gradients_behind_a_finite_loss_did_not_come_by_what_brought_a_buffer_of_the_forward(by_hand, loss, ways):
    """A queue of keys that are gathered for later steps; the gradients came by their own exchange."""
    sent = Sent("all_gather", (0, 1), 7, "0#0", by_hand.found(5))
    look = received(by_hand, 5, "all_gather", (0, 1), 7, "0#0")
    look = replace(look, facts={**look.facts, "carried_by": "all_gather", "number": 0})
    queue = by_hand.state(5, "queue", what="buffer", phase="forward")
    first = by_hand.rank(0, queue, by_hand.gradient(5, loss=loss), look)
    own = (sent, queue, by_hand.loss(5), by_hand.gradient(5, loss=float("nan")), by_hand.found(5))
    told = analyse(by_hand.run(first, by_hand.rank(1, *own)))
    assert told.verdict.origin.ranks == (1,)
    assert [one.via for one in told.verdict.spread if one.ranks == (0,)] == ways


def test_another_message_is_no_origin(by_hand):
    sent = Sent("send", (0, 1), 4, "0#0/0", by_hand.found(4))
    told = report(by_hand, sent, received(by_hand, 5, "send", (0, 1), 5, "0#0/0"))
    assert told.verdict.origin.ranks == (1,)


def test_what_was_sent_is_no_anomaly(by_hand):
    told = analyse(by_hand.run(by_hand.rank(0, Sent("send", (0, 1), 5, "0#0/0", by_hand.found(0)))))
    assert told.verdict.anomaly is False


def test_the_way_goes_on_through_a_rank_that_only_passed_it_on(by_hand):
    passed = Sent("send", (2, 1), 3, "0#0/0", received(by_hand, 0, "send", (0, 2), 8, "0#0/0"))
    first = Sent("send", (0, 2), 8, "0#0/0", by_hand.found(0))
    last = received(by_hand, 5, "send", (2, 1), 3, "0#0/0")
    told = report(by_hand, first, last, by_hand.rank(2, passed, world=3))
    assert told.verdict.origin.ranks == (0,)
    assert "What ranks 1-2 got from other ranks was bad already." in told.verdict.evidence


def test_where_only_the_handing_over_was_seen_it_is_said_so(by_hand):
    look = by_hand.found(
        0, method="message", source="outside", phase="collective", inputs=(by_hand.fact(nan=1),), outputs=(),
        reason="nothing of this step was taped",
    )  # fmt: skip
    sent = Sent("send", (0, 1), 5, "0#0/0", look)
    told = report(by_hand, sent, received(by_hand, 5, "send", (0, 1), 5, "0#0/0"))
    assert (told.verdict.origin.ranks, told.verdict.confidence) == ((0,), "observed")
    assert told.verdict.summary == "NaN first seen on rank 0 at step 5 in what it sent to rank 1"
    assert any(text.startswith("Seen when it was sent; what made it") for text in told.verdict.evidence)


def test_harm_that_came_back_to_the_rank_that_sent_it_first(by_hand):
    """A stage gets a bad gradient for what it had sent bad itself: both ranks look, and both have only received."""
    forth = Sent("send", (0, 1), 5, "0#0/0", by_hand.found(5))
    back = Sent("send", (1, 0), 5, "0#0/0", received(by_hand, 5, "send", (0, 1), 5, "0#0/0"))
    first = by_hand.rank(0, forth, by_hand.gradient(5), received(by_hand, 5, "send", (1, 0), 5, "0#0/0"))
    second = by_hand.rank(1, by_hand.loss(5), received(by_hand, 5, "send", (0, 1), 5, "0#0/0"), back)
    told = analyse(by_hand.run(first, second))
    assert (told.verdict.origin.ranks, told.verdict.origin.line) == ((0,), 12)


def test_a_number_in_an_object_is_put_on_the_rank_that_gave_it(by_hand):
    """All ranks got it, the one that gave it too; that it is the number which did harm is no more than inferred."""
    way = ("all_gather_object", (0, 1), 7, "0#0")
    given = by_hand.found(
        5, method="message", source="outside", phase="collective", inputs=(by_hand.fact(nan=1),), outputs=(),
        facts={"by_object": True},
    )  # fmt: skip
    first = by_hand.rank(0, by_hand.loss(5), received(by_hand, 5, *way))
    second = by_hand.rank(1, Sent(*way, given), by_hand.loss(5), received(by_hand, 5, *way))
    told = analyse(by_hand.run(first, second))
    assert (told.verdict.origin.ranks, told.verdict.confidence) == ((1,), "inferred")
    assert "in what it gave to other ranks (all_gather_object)" in told.verdict.summary
    assert "That this number is the one that did harm is inferred." in told.verdict.evidence
    assert not any("by itself" in text for text in told.verdict.evidence)


def unknown(by_hand, step=5):
    """A look that led no further back than to what the step was given."""
    return by_hand.found(step, source="outside", phase="loss", inputs=(by_hand.fact(nan=4),), outputs=())


def put_in(by_hand, step=5, number=7):
    look = by_hand.found(
        step, method="message", source="outside", phase="collective", inputs=(by_hand.fact(nan=1),), outputs=(),
        reason="nothing of this step was taped",
    )  # fmt: skip
    return Sent("all_reduce", (0, 1, 2), number, "0#0", look)


def test_the_one_rank_that_put_it_into_a_sum_is_inferred_where_nobody_could_lead_it_back(by_hand):
    logs = [by_hand.rank(at, by_hand.loss(5), unknown(by_hand), world=3) for at in (0, 1)]
    told = analyse(by_hand.run(*logs, by_hand.rank(2, put_in(by_hand), by_hand.loss(5), unknown(by_hand), world=3)))
    assert (told.verdict.origin.ranks, told.verdict.confidence) == ((2,), "inferred")
    assert told.verdict.summary == "NaN first seen on rank 2 at step 5 in what it gave to other ranks (all_reduce)"
    said = "No other rank handed on anything bad in this step: that the harm came by this way is inferred."
    assert said in told.verdict.evidence


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(lambda by_hand: [put_in(by_hand, number=8)], id="two-ways"),
        pytest.param(lambda by_hand: [by_hand.found(5)], id="an-op-was-found"),
        pytest.param(lambda by_hand: [put_in(by_hand)], id="all-ranks-gave"),
    ],
)
def test_nobody_is_blamed_for_a_way_that_is_not_the_only_one(by_hand, others):
    logs = [by_hand.rank(at, *others(by_hand), by_hand.loss(5), unknown(by_hand), world=3) for at in (0, 1)]
    told = analyse(by_hand.run(*logs, by_hand.rank(2, put_in(by_hand), by_hand.loss(5), unknown(by_hand), world=3)))
    assert told.verdict.origin.ranks != (2,)


@pytest.mark.parametrize(("step", "ranks"), [(3, (2,)), (0, (0, 1, 2))])
def test_what_was_handed_on_a_few_steps_before_may_have_been_kept(by_hand, step, ranks):
    late = step + 2 if step else 40
    logs = [by_hand.rank(at, by_hand.loss(late), unknown(by_hand, late), world=3) for at in (0, 1)]
    last = by_hand.rank(2, put_in(by_hand, step), by_hand.loss(late), unknown(by_hand, late), world=3)
    told = analyse(by_hand.run(*logs, last))
    assert told.verdict.origin.ranks == ranks
    said = "No other rank handed on anything bad in the 16 steps before: that the harm came by this way is inferred."
    assert (said in told.verdict.evidence) is (ranks == (2,))


def test_of_two_ways_before_none_is_blamed(by_hand):
    logs = [by_hand.rank(at, by_hand.loss(5), unknown(by_hand), world=3) for at in (0, 1)]
    sent = put_in(by_hand, 3), put_in(by_hand, 4, number=9)
    told = analyse(by_hand.run(*logs, by_hand.rank(2, *sent, by_hand.loss(5), unknown(by_hand), world=3)))
    assert told.verdict.origin.ranks != (2,)


def exchanged(by_hand, *ways):
    """A look at gradients that were finite before the script's own exchanges of them."""
    brought = [[way, list(ranks), *more] for way, ranks, *more in ways]
    facts = {"by": "script", "collective": "gather", "exchanged": brought}
    return replace(by_hand.found(5, source=None, phase="collective", outputs=(), facts=facts), outcome="finite")


def test_what_a_server_of_gradients_was_given_leads_to_the_client_though_that_counts_its_steps_otherwise(by_hand):
    way = ("gather", (0, 1, 2), 20, "0#0")
    server = by_hand.rank(0, by_hand.gradient(5), exchanged(by_hand, way), world=3)
    told = analyse(by_hand.run(server, by_hand.rank(1, Sent(*way, by_hand.found(24)), world=3), world=3))
    assert (told.verdict.origin.ranks, told.verdict.origin.step, told.verdict.confidence) == ((1,), 5, "inferred")
    assert told.verdict.origin.line == 12


def test_of_two_clients_that_gave_bad_values_none_is_blamed_alone(by_hand):
    way = ("gather", (0, 1, 2), 20, "0#0")
    server = by_hand.rank(0, by_hand.gradient(5), exchanged(by_hand, way), world=3)
    clients = [by_hand.rank(at, Sent(*way, by_hand.found(24)), world=3) for at in (1, 2)]
    assert analyse(by_hand.run(server, *clients, world=3)).verdict.origin.ranks not in {(1,), (2,)}


def test_a_weight_that_another_rank_filled_with_what_was_bad_was_received(by_hand):
    """The script broadcasts the weights between two steps, and both ranks begin the next one with them."""
    way = ("broadcast", (0, 1), 15, "0#0")
    call = Site(op="c10d::broadcast_.default", file="/w/train.py", line=33, source="    dist.broadcast(p.data, src=0)")
    held = by_hand.found(
        5, source="parameter", phase="optimizer", inputs=(by_hand.fact("freq", posinf=1),), outputs=(),
        facts={"began_bad": ["freq"], "all_bad": 1, "filled_by": [way[0], list(way[1]), *way[2:]]},
    )  # fmt: skip
    made = by_hand.found(5, phase="data")
    first = by_hand.rank(0, Sent(*way, by_hand.found(5), call), by_hand.loss(5), by_hand.gradient(5), made)
    told = analyse(by_hand.run(first, by_hand.rank(1, by_hand.loss(5), by_hand.gradient(5), held))).verdict
    assert told.origin.ranks == (0,)
    assert not any("by itself" in text for text in told.evidence)
    assert {one.via for one in told.spread} == {
        "the script's broadcast in line 33 of train.py, in the group of ranks 0-1"
    }
    unsent = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), made), by_hand.rank(1, by_hand.loss(5), held)))
    assert any("rank 1 went bad in the same step too, for a weight of its own was bad" in text.lower()
               for text in unsent.verdict.evidence)  # fmt: skip


def test_a_message_of_an_earlier_step_did_not_bring_what_is_bad_now(by_hand):
    way = ("broadcast", (0, 1), 15, "0#0")
    held = by_hand.found(
        5, source="parameter", phase="optimizer", inputs=(by_hand.fact("freq", posinf=1),), outputs=(),
        facts={"filled_by": [way[0], list(way[1]), *way[2:]]},
    )  # fmt: skip
    told = analyse(
        by_hand.run(by_hand.rank(0, Sent(*way, by_hand.found(2))), by_hand.rank(1, by_hand.loss(5), held))
    ).verdict
    assert told.origin.ranks == (1,)


def test_a_rank_with_finite_shards_met_the_bad_ones_of_another(by_hand):
    shard = replace(by_hand.fact("2.weight", nan=3), placement="(S(0))")
    bad = replace(by_hand.state(4, since=3), tensors=(shard,))
    first = by_hand.rank(0, by_hand.gradient(5))
    told = analyse(by_hand.run(first, by_hand.rank(1, bad, by_hand.found(4, phase="optimizer")))).verdict
    assert [(one.ranks, one.via) for one in told.spread] == [((0,), "the bad shards of weights on rank 1")]


@pytest.mark.parametrize(("between", "told"), [(False, []), (True, ["gradient"])])
def test_gradients_that_go_bad_steps_after_a_bad_loss_are_a_hit_of_their_own(by_hand, between, told):
    """The gradients of the step of the loss were finite, and nothing bad had reached any weights."""
    more = [by_hand.state(4, since=3)] if between else []
    logs = [by_hand.rank(at, by_hand.loss(3), by_hand.found(3), *more, by_hand.gradient(6)) for at in (0, 1)]
    spread = analyse(by_hand.run(*logs)).verdict.spread
    assert [one.what for one in spread if one.what == "gradient"] == told


@pytest.mark.parametrize("bad_loss", [False, True])
def test_gradients_that_went_through_the_scripts_exchange_came_by_it_where_the_loss_was_finite(by_hand, bad_loss):
    wrote = Site(op="div_", file="/w/train.py", line=34, source="p.grad /= world")
    facts = {"written_in_place": "div_", "exchanged_by": ["all_reduce", "/w/train.py", 33]}
    last = by_hand.found(4, method="tape", phase="optimizer", site=wrote, facts=facts, inputs=())
    first = by_hand.rank(0, *([by_hand.loss(4)] if bad_loss else []), by_hand.gradient(4), last)
    made = by_hand.rank(1, by_hand.loss(4), by_hand.gradient(4), by_hand.found(4))
    told = analyse(by_hand.run(first, made)).verdict
    assert told.origin.ranks == (1,)
    way = "the script's all_reduce in line 33 of train.py"
    came = f"The gradients of rank 0 went through {way}, and its loss was finite: that no fault is there as well is "
    assert (f"{came}inferred." in told.evidence) is not bad_loss
    assert (("gradient", way) in [(one.what, one.via) for one in told.spread]) is not bad_loss
    assert any("whether that came from another rank is not known" in text for text in told.evidence) is bad_loss


def test_one_rank_that_sent_the_same_to_several_is_told_with_all_of_them(by_hand):
    ways = ("send", (0, 1), 5, "0#0/0"), ("send", (0, 2), 5, "0#0/1")
    sends = [replace(by_hand.found(0), facts={}, phase="loss", site=replace(by_hand.found(0).site, module=None))] * 2
    server = by_hand.rank(0, *(Sent(*way, look) for way, look in zip(ways, sends, strict=True)), world=3)
    others = [by_hand.rank(to, by_hand.loss(5), received(by_hand, 5, *way), world=3) for to, way in enumerate(ways, 1)]
    told = analyse(by_hand.run(server, *others, world=3)).verdict
    assert "in what it sent to ranks 1-2, used" in told.summary or told.summary.endswith("in what it sent to ranks 1-2")
