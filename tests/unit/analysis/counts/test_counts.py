"""Ranks that make unequal numbers of steps between the same calls: their moments are those of the calls they share."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.counts import aligned, chosen, counts_of
from nandiag.analysis.counts.laid import moment
from nandiag.analysis.first import first_look
from nandiag.analysis.report import RankState
from nandiag.events import Harm, Sent, Site, Stopping
from nandiag.events.standing import CallFact, GroupFact, Standing

WRITTEN = Site(op=".data", file="train.py", line=27, column=(8, 14), source="        p.data /= 2")
DIVIDED = Site(op="aten.div.Tensor", file="train.py", line=8, column=(8, 13), source="    w = w / n", function="renorm")


def standing(steps, *, members=((0, 1),), op="all_reduce", peer=None, group="0"):
    calls = tuple(CallFact(op, group, seq, "done", step=step, peer=peer) for seq, step in enumerate(steps))
    return Standing("left", 1000.0, 9, steps[-1], (GroupFact(group, "default_pg", members, len(steps)),), calls)


def stood(log, *steps, **rest):
    return replace(log, standing=standing(steps, **rest))


def divided(by_hand, step, **given):
    zero = by_hand.fact(zeros=1, min=0.0)
    return by_hand.found(step, phase="optimizer", site=DIVIDED, inputs=(by_hand.fact(), zero),
                         outputs=(by_hand.fact(nan=4),), **given)  # fmt: skip


def written(by_hand, step):
    facts = {"written_in_place": ".data", "began_bad": ["fc.weight"], "all_bad": 1}
    return by_hand.found(step, method="tape", micro_step=None, phase="optimizer", site=WRITTEN, inputs=(),
                         outputs=(by_hand.fact(nan=4),), facts=facts)  # fmt: skip


def averaged(by_hand, *, fast=1):
    """A fast rank makes two steps for one of the other, and spoils the average at its step 10."""
    slow = 1 - fast
    gave = Sent("all_reduce", (0, 1), 16, "0#0", divided(by_hand, 10))
    spoilt = gave, by_hand.loss(10), by_hand.gradient(10), divided(by_hand, 10), *over(by_hand, 10)
    received = by_hand.loss(5), by_hand.gradient(5), written(by_hand, 5), *over(by_hand, 5)
    return {
        fast: stood(by_hand.rank(fast, *spoilt), 2, 4, 6, 8, 10),
        slow: stood(by_hand.rank(slow, *received), 1, 2, 3, 4, 5),
    }


def over(by_hand, step):
    return Stopping(step, "stop", "stop", "non-finite gradient"), by_hand.finished(step, 0, step - 1)


@pytest.mark.parametrize("fast", [0, 1])
def test_a_rank_with_fewer_steps_does_not_take_the_blame_for_a_faster_one(by_hand, fast):
    logs = averaged(by_hand, fast=fast)
    report = analyse(by_hand.run(logs[0], logs[1]))
    verdict, slow = report.verdict, 1 - fast
    assert (verdict.origin.ranks, verdict.origin.step, verdict.origin.line) == ((fast,), 10, 8)
    assert [(one.ranks, one.step) for one in verdict.spread if slow in one.ranks]
    assert all(one.step == 5 for one in verdict.spread if slow in one.ranks)
    assert not [one for one in verdict.spread if fast in one.ranks and one.what in {"loss", "gradient"}]
    told = f"Each rank counts its own steps: rank {slow} first saw harm at its step 5, rank {fast} at its step 10."
    assert told in verdict.evidence
    assert (report.ranks["0"].last_step, report.ranks["1"].last_step) == ((5, 10) if fast else (10, 5))


def federated(by_hand):
    logs = []
    for rank in range(3):
        step = 3 * (rank + 1)
        events = by_hand.state(step, phase="init"), by_hand.loss(step), by_hand.gradient(step), divided(by_hand, step)
        own = rank + 1
        logs.append(stood(by_hand.rank(rank, *events, world=3), own, 2 * own, 3 * own, 3 * own, members=((0, 2),)))
    return by_hand.run(*logs, world=3)


def test_ranks_that_break_at_the_same_moment_are_all_named_each_with_its_own_step(by_hand):
    verdict = analyse(federated(by_hand)).verdict
    assert (verdict.origin.ranks, verdict.origin.step) == ((0, 1, 2), 3)
    assert not [one for one in verdict.spread if one.what in {"loss", "gradient"} and one.via is None]
    assert not [one for one in verdict.spread if one.what == "parameter"]
    told = (
        "Each rank counts its own steps: rank 1 first saw harm at its step 6 and rank 2 at its step 9, rank 0 at its "
        "step 3."
    )
    assert told in verdict.evidence


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("slow", "fast"), [(5, 15), (15, 15)])
def test_what_a_rank_sent_is_told_with_the_step_of_that_rank(by_hand, slow, fast, own):
    gave = Sent("all_reduce", (0, 1), 4, "0#0", divided(by_hand, fast))
    handed = {"handed": ["all_reduce", [0, 1], 4, "0#0"], "carried_by": "all_reduce", "group_ranks": [0, 1]}
    bad = {"inputs": (by_hand.fact(nan=4),), "site": WRITTEN}
    came = by_hand.found(slow, phase="collective", source="received", facts=handed, **bad)
    # What it got back was bad already, as its own share was: it knows no more of that by its own look.
    met = (by_hand.found(fast, phase="data", source="outside", **bad),) if own else ()
    got = by_hand.rank(0, by_hand.loss(slow), by_hand.gradient(slow), came)
    sent = by_hand.rank(1, gave, by_hand.loss(fast), by_hand.gradient(fast), *met)
    counts = [[at * last // 5 for at in range(1, 6)] for last in (slow, fast)]
    verdict = analyse(by_hand.run(stood(got, *counts[0]), stood(sent, *counts[1]))).verdict
    assert (verdict.origin.ranks, verdict.origin.step, verdict.origin.line) == ((1,), fast, 8)
    assert {one.step for one in verdict.spread if 0 in one.ranks} == {slow}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((2, 4, 6, 8), (2, 4, 6, 8)),  # alike
        ((2, 4, 5, 5, 5), (2, 4, 5, 6, 7)),  # it ended earlier, and answers calls of the others
        ((5, 5, 5, 5), (6, 7, 8, 9)),  # the same, of which only the newest calls are known
        ((3, 4, 5), (2, 3, 4)),  # one behind
        ((0, 0, 0), (2, 4, 6)),  # no optimizer
        ((1,), (2,)),  # too little
    ],
)
def test_counts_that_can_be_compared_stay_as_they_are(by_hand, one, other):
    logs = stood(by_hand.rank(0, by_hand.loss(3)), *one), stood(by_hand.rank(1, by_hand.loss(5)), *other)
    assert not counts_of(logs).apart
    assert aligned(logs, counts_of(logs), 0)[0] is logs


@pytest.mark.parametrize("rest", [{"peer": 1}, {"op": "init_process_group", "group": ""}])
def test_messages_and_calls_without_a_group_tell_nothing(by_hand, rest):
    logs = stood(by_hand.rank(0), 1, 2, 3, **rest), stood(by_hand.rank(1), 2, 4, 6, **rest)
    assert not counts_of(logs).apart


def test_no_standing_tells_nothing(by_hand):
    assert not counts_of((by_hand.rank(0, by_hand.loss(5)), by_hand.rank(1, by_hand.loss(10)))).apart


@pytest.mark.parametrize(("harmed", "told"), [(15, 15), (5, 5), (None, 5)])
def test_a_line_on_the_way_has_the_own_step_of_a_rank_that_saw_harm_there(by_hand, harmed, told):
    gave = Sent("all_reduce", (0, 1), 4, "0#0", divided(by_hand, 15))
    handed = {"handed": ["all_reduce", [0, 1], 4, "0#0"], "carried_by": "all_reduce", "group_ranks": [0, 1]}
    came = by_hand.found(5, phase="collective", source="received", facts=handed, inputs=(by_hand.fact(nan=4),))
    own = () if harmed is None else (by_hand.loss(harmed),)
    rank, look = first_look([by_hand.rank(0, by_hand.loss(5), came), by_hand.rank(1, gave, *own)])
    assert (rank, look.step, look.site) == (1, told, DIVIDED)


@pytest.mark.parametrize(("one", "other"), [((2, 3, 4, 5), (2, 5, 8, 11)), ((1, 3, 6, 7), (3, 3, 9, 12))])
def test_counts_that_agree_by_chance_run_apart_behind_that(by_hand, one, other):
    logs = stood(by_hand.rank(0), *one), stood(by_hand.rank(1), *other)
    assert counts_of(logs).apart == {(1, 0)}


def test_a_group_that_was_destroyed_by_then_tells_as_much(by_hand):
    logs = averaged(by_hand)
    for rank, log in logs.items():
        logs[rank] = replace(log, standing=replace(log.standing, groups=(), gone=log.standing.groups))
    assert counts_of(logs.values()).apart == {(1, 0)}
    assert not counts_of([replace(log, standing=replace(log.standing, gone=())) for log in logs.values()]).apart


def test_before_the_oldest_known_call_ranks_are_as_fast_as_up_to_there():
    pairs = ((20, 50), (22, 55), (24, 60))
    assert [moment(pairs, step) for step in (0, 2, 10, 19, 20, 24)] == [0, 5, 25, 47, 50, 60]


def test_what_was_finite_before_is_so_in_the_count_of_the_other_rank(by_hand):
    slow = stood(by_hand.rank(0, by_hand.state(4, since=3)), 1, 2, 3, 4)
    logs = slow, stood(by_hand.rank(1, by_hand.loss(12)), 3, 6, 9, 12)
    laid, own = aligned(logs, counts_of(logs), 1)
    (harm,) = [one.event for one in laid[0].records if isinstance(one.event, Harm)]
    assert (harm.step, harm.since, own.of(0, 0, 12)) == (12, 11, 4)


def test_a_rank_without_harm_does_not_send_the_run_back_by_its_own_count(by_hand):
    fast = stood(by_hand.rank(1, by_hand.loss(12), divided(by_hand, 12), *over(by_hand, 12)), 3, 6, 9, 12)
    slow = stood(by_hand.rank(0, steps=4), 1, 2, 3, 4)
    assert analyse(by_hand.run(slow, fast)).verdict.last_finite_step == 11


def test_the_state_of_a_rank_is_laid_too_and_the_finest_count_is_taken(by_hand):
    logs = averaged(by_hand, fast=0)
    states = {rank: RankState("stopped", log.records[-1].event.steps, attached=True) for rank, log in logs.items()}
    found = chosen(tuple(logs.values()), states)
    assert (found.claim.ranks, found.states[0].last_step, found.states[1].last_step) == ((0,), 10, 10)
    assert counts_of(averaged(by_hand, fast=1).values()).finest() == 1
