"""Harm that goes through a collective is followed to the rank that put it in."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Around, Meaning, Site

REDUCTION = Site("", "Net", "c10d._reduce_scatter_base_.default")
RECEIVED = {"source": "received", "phase": "collective", "site": REDUCTION, "inputs": (), "outputs": ()}


def through(number, *, sent=False, kind="all_reduce", **given):
    if sent:
        return {"sent": True, "sent_through": [[kind, [0, 1], number]]}
    return {"carried_by": kind, "group": "default_pg", "group_ranks": [0, 1], "number": number, **given}


def test_harm_that_came_back_through_a_collective_is_followed_to_the_rank_that_put_it_in(by_hand):
    """Rank 0 goes bad by what it receives, rank 1 by what rank 0 then makes of it: it began on rank 1 all the same."""
    received = by_hand.found(3, source="received", phase="collective", facts=through(0))
    sent = by_hand.found(3, facts=through(0, sent=True))
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(3), received), by_hand.rank(1, by_hand.loss(3), sent)))
    assert report.verdict.origin.ranks == (1,)


def test_what_a_rank_put_in_is_no_origin_where_nobody_received_it(by_hand):
    received = by_hand.found(3, source="received", phase="collective", facts=through(4))
    sent = by_hand.found(3, facts=through(0, sent=True))
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(3), received), by_hand.rank(1, by_hand.loss(3), sent)))
    assert report.verdict.origin.ranks != (1,)


def test_a_rank_without_harm_that_put_it_in_is_the_origin(by_hand):
    """Its own part of a reduce-scatter is finite, and its look found what it gave to the others."""
    received = by_hand.found(3, source="received", phase="collective", facts=through(5, kind="reduce_scatter"))
    sent = by_hand.found(3, facts=through(5, sent=True, kind="reduce_scatter"))
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(3), received), by_hand.rank(1, sent)))
    assert report.verdict.origin.ranks == (1,)


def test_a_message_has_two_ends_and_is_one(by_hand):
    received = by_hand.found(3, source="received", phase="collective", facts=through(0, kind="recv"))
    sent = by_hand.found(3, facts=through(0, sent=True, kind="send"))
    report = analyse(by_hand.run(by_hand.rank(0, sent), by_hand.rank(1, by_hand.loss(3), received)))
    assert report.verdict.origin.ranks == (0,)


def test_a_loss_made_of_what_was_received_is_not_said_to_have_begun_there(by_hand):
    received = by_hand.found(3, source="received", phase="collective", facts=through(0, kind="recv"))
    finite = by_hand.rank(0, by_hand.gradient(3), by_hand.finite(3))
    report = analyse(by_hand.run(finite, by_hand.rank(1, by_hand.loss(3), received)))
    told = " ".join(report.verdict.evidence)
    assert "began there" not in told
    assert "what came there from another rank was bad already" in told


def test_the_line_that_used_what_was_received_is_not_said_to_have_asked_of_a_loss(by_hand):
    """No rank is known to have sent it: the loss has a kind of its own, and the help looks at the others."""
    came = by_hand.fact(neginf=1)
    facts = {"carried_by": "broadcast", "group_ranks": [0, 1]}
    site = Site(op="aten.mul.Tensor", file="train.py", line=7, source="out = out * scale", column=(6, 17))
    received = by_hand.found(
        3, source="received", phase="collective", site=site, inputs=(came,), outputs=(), facts=facts
    )
    lost = replace(by_hand.loss(3), tensors=(by_hand.fact("loss", posinf=1),))
    verdict = analyse(by_hand.run(by_hand.rank(0), by_hand.rank(1, lost, received))).verdict
    told = " ".join(verdict.evidence)
    assert verdict.summary.startswith("+Inf loss on rank 1")
    assert "asked" not in told
    assert "came by broadcast in the group of ranks 0-1: what made it is not known" in told
    assert "what the other ranks hand to this one" in verdict.suggestions[0].text


@pytest.mark.parametrize(
    ("sizes", "dtype", "cause"),
    [((50_000.0, 50_000.0), "float16", "collective_overflow"), ((1.0, 2.0), "float32", "hardware_corruption")],
)
def test_what_goes_in_finite_on_every_rank_and_comes_out_bad_is_born_in_the_collective(sizes, dtype, cause, by_hand):
    looks = [
        by_hand.found(
            3,
            source="received",
            phase="collective",
            site=REDUCTION,
            inputs=(),
            outputs=(),
            facts=through(2, sent_dtype=dtype, sent_absmax=size),
        )
        for size in sizes
    ]
    ranks = [by_hand.rank(number, by_hand.gradient(3), look) for number, look in enumerate(looks)]
    verdict = analyse(by_hand.run(*ranks)).verdict
    assert (verdict.cause, verdict.origin.ranks, verdict.origin.phase) == (cause, (0, 1), "collective")
    assert "born in the all_reduce of ranks 0-1" in verdict.summary
    assert verdict.reproduced is True


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("bucket.buffer().to(torch.float16)", "half = bucket.buffer().to(torch.bfloat16)"),
        ("bucket.buffer().half()", "half = bucket.buffer().bfloat16()"),
        ("bucket.buffer()", "MixedPrecisionPolicy(reduce_dtype=torch.float32)"),
    ],
)
def test_what_the_script_itself_makes_too_narrow_before_a_sum_is_made_wider_in_its_own_words(text, first, by_hand):
    site = replace(REDUCTION, around=Around((Meaning("half", text, "train.py", 7),)))
    facts = through(2, sent_dtype="float16", sent_absmax=50_000.0)
    look = by_hand.found(3, source="received", phase="collective", site=site, inputs=(), outputs=(), facts=facts)
    verdict = analyse(by_hand.run(*(by_hand.rank(one, by_hand.gradient(3), look) for one in range(2)))).verdict
    assert (verdict.cause, verdict.suggestions[0].code) == ("collective_overflow", first)


def test_a_rank_that_was_clean_in_the_same_replay_took_part_in_the_collective(by_hand):
    facts = through(2, kind="reduce_scatter", sent_dtype="float16", sent_absmax=50_000.0)
    received = by_hand.found(
        3, source="received", phase="collective", site=REDUCTION, inputs=(), outputs=(), facts=facts
    )
    clean = replace(by_hand.finite(3), facts={"complete": True, "joint": True})
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(3), received), by_hand.rank(1, clean))).verdict
    assert (verdict.cause, verdict.origin.ranks) == ("collective_overflow", (0, 1))


def ways(report):
    return {(one.what, one.via) for one in report.verdict.spread}


def test_a_bad_loss_has_the_way_that_it_came_as_bad_gradients_have(by_hand):
    came = by_hand.found(3, source="received", phase="collective", facts=through(0))
    logs = by_hand.rank(0, by_hand.loss(3), by_hand.gradient(3), came), by_hand.rank(1, by_hand.found(3))
    way = "all_reduce, collective 0 of the step in the group of ranks 0-1"
    assert ways(analyse(by_hand.run(*logs))) == {("loss", way), ("gradient", way)}


def test_what_came_by_an_unknown_way_into_the_forward_came_by_no_exchange_of_gradients(by_hand):
    came = by_hand.found(3, source="received", phase="collective", facts={})
    logs = by_hand.rank(0, by_hand.loss(3), by_hand.gradient(3), came), by_hand.rank(1, by_hand.found(3))
    assert ways(analyse(by_hand.run(*logs))) == {("loss", None), ("gradient", None)}


def test_gradients_that_the_script_exchanges_by_itself_have_its_line(by_hand):
    site = Site(op="c10d.allreduce_.default", file="train.py", line=9, source="dist.all_reduce(p.grad)")
    clean = replace(by_hand.finite(3), site=site, facts={"complete": False, "collective": "all_reduce", "by": "script"})
    logs = by_hand.rank(0, by_hand.gradient(3), clean), by_hand.rank(1, by_hand.gradient(3), by_hand.found(3))
    assert ways(analyse(by_hand.run(*logs))) == {("gradient", "the script's all_reduce in line 9 of train.py")}


def test_a_collective_that_the_script_calls_has_its_line_and_one_of_a_wrapper_has_its_number(by_hand):
    own = Site(op="c10d.allgather_.default", file="lib/losses.py", line=25, source="keys = dnn.all_gather(b)")
    came = by_hand.found(3, source="received", phase="collective", site=own, facts=through(0, kind="all_gather"))
    logs = by_hand.rank(0, by_hand.loss(3), came), by_hand.rank(1, by_hand.found(3))
    way = "the script's all_gather in line 25 of losses.py, in the group of ranks 0-1"
    assert ways(analyse(by_hand.run(*logs))) == {("loss", way)}
    wrapped = replace(came, site=replace(own, source="z = net(x)"))
    logs = by_hand.rank(0, by_hand.loss(3), wrapped), by_hand.rank(1, by_hand.found(3))
    assert ways(analyse(by_hand.run(*logs))) == {
        ("loss", "all_gather, collective 0 of the step in the group of ranks 0-1")
    }


@pytest.mark.parametrize(("other", "known"), [("sent", True), ("finite", False), ("none", False)])
def test_what_all_ranks_made_alike_and_sent_on_is_the_origin_though_none_received_it(other, known, by_hand):
    """What each makes of a sum that is 0 is the same: nothing comes back otherwise than it was put in."""
    sent = by_hand.found(3, facts=through(0, sent=True))
    looks = {"sent": [sent], "finite": [by_hand.finite(3)], "none": []}[other]
    logs = [by_hand.rank(0, by_hand.gradient(3), sent), by_hand.rank(1, by_hand.gradient(3), *looks)]
    told = analyse(by_hand.run(*logs)).verdict
    assert (told.origin.op == "aten.log.default") is known
