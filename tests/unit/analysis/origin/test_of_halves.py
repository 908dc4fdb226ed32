"""A sum over ranks in float16 of what was finite on each: it is the origin, whoever used it first."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Harm

LINE = ["/w/train.py", 19, "    dist.reduce(flat, dst=0)", "main", [4, 28]]
WAY = ["reduce", [0, 1], 31, "0#0"]
CALL = {"reduce": "sum", "called_at": LINE}


def log(by_hand, rank, largest=41024.0, came=None, **given):
    row = [WAY, largest, came, CALL]
    look = given.pop("look", None) or by_hand.found(
        7, source="outside", phase="optimizer", outputs=(), inputs=(by_hand.fact(neginf=1, shape=(1,)),), facts={}
    )
    facts = {**look.facts, "halves": [] if largest is None else [row]}
    return by_hand.rank(rank, by_hand.gradient(7), type(look)(**{**vars_of(look), "facts": facts}), **given)


def vars_of(look):
    return {name: getattr(look, name) for name in look.__dataclass_fields__}


BAD = [[241], 0, 0, 1]


def test_the_sum_is_the_origin_with_what_each_rank_put_in(by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, 40512.0, look=by_hand.finite(7)))
    told = analyse(given).verdict
    assert told.summary == "-Inf born in the reduce (SUM) of ranks 0-1 at step 7"
    assert (told.cause, told.origin.line, told.origin.op) == ("collective_overflow", 19, "c10d.reduce_.default")
    assert "What each rank put in was finite: up to 41024 on rank 0, 40512 on rank 1." in told.evidence
    assert "reduce adds up what 2 ranks give (SUM): the sum left float16, which ends at 65504" in told.evidence
    assert "float32" in told.suggestions[0].text
    assert told.suggestions[0].code == "flat = flat.float()\ndist.reduce(flat, dst=0)"
    assert told.suggestions[1].code == "flat /= dist.get_world_size()\ndist.reduce(flat, dst=0)"


def test_a_call_that_shares_its_line_is_given_no_policy_of_fsdp(by_hand, monkeypatch):
    line = ["/w/train.py", 13, "    dist.reduce(flat, dst=0); return flat", "summed", [4, 28]]
    monkeypatch.setitem(CALL, "called_at", line)
    told = analyse(by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, 40512.0, look=by_hand.finite(7)))).verdict
    assert not any("FSDP" in one.text or "Policy" in (one.code or "") for one in told.suggestions)
    assert told.suggestions[0].code == "flat /= dist.get_world_size()\ndist.reduce(flat, dst=0)"
    assert "float32" in told.suggestions[1].text


@pytest.mark.parametrize("largest", [None])
def test_it_is_none_where_the_part_of_one_rank_is_not_known(largest, by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, largest, look=by_hand.finite(7)))
    assert "born in the reduce" not in analyse(given).verdict.summary


def test_it_is_none_where_a_rank_found_the_op_that_made_its_own_bad(by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, look=by_hand.found(7)))
    assert analyse(given).verdict.origin.op == "aten.log.default"


def came_by(by_hand, number, group="0#0", **facts):
    """A look that shows that what is bad was received, by which call."""
    way = {"handed": ["all_reduce", [0, 1], number, group], **facts}
    return by_hand.found(7, source="received", phase="optimizer", inputs=(by_hand.fact(neginf=1),), facts=way)


def joint(by_hand, line):
    """What a run of the step again by all ranks shows of a sum in a line, to which each gave what is finite."""
    facts = {"carried_by": "all_reduce", "group_ranks": [0, 1], "number": 3, "joint": True, "sent_absmax": 1e30}
    look = by_hand.found(7, source="received", inputs=(by_hand.fact(posinf=1),), facts=facts)
    return type(look)(**{**vars_of(look), "site": replace(look.site, line=line, file="/w/train.py")})


@pytest.mark.parametrize("source", ["input", "op"])
def test_it_is_none_where_a_rank_has_an_origin_of_its_own(source, by_hand):
    own = by_hand.found(7, source=source, facts={})
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, look=own))
    assert "born in the reduce" not in analyse(given).verdict.summary


def test_it_is_none_where_a_weight_was_bad_before_the_step(by_hand):
    logs = [log(by_hand, number, came=BAD if number == 0 else None) for number in range(2)]
    before = [by_hand.state(7, phase="checkpoint") for _ in logs]
    whole = [replace(one, records=(*one.records[:2], replace(one.records[2], event=state), *one.records[2:]))
             for one, state in zip(logs, before, strict=True)]  # fmt: skip
    assert "born in the reduce" not in analyse(by_hand.run(*whole)).verdict.summary


@pytest.mark.parametrize(("number", "group", "leads"), [(30, "0#0", False), (32, "0#0", True), (30, "1#0", True)])
def test_what_came_by_an_earlier_call_of_the_group_is_not_of_the_sum(number, group, leads, by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, look=came_by(by_hand, number, group)))
    assert ("born in the reduce" in analyse(given).verdict.summary) is leads


@pytest.mark.parametrize("by_others", [True, False])
def test_what_others_than_torch_wrote_into_gradients_is_not_of_the_sum(by_others, by_hand):
    finite = by_hand.finite(7)
    look = replace(finite, facts={**finite.facts, "by_others": by_others})
    given = by_hand.run(log(by_hand, 0, came=BAD, look=look), log(by_hand, 1, look=look))
    assert ("born in the reduce" in analyse(given).verdict.summary) is not by_others


@pytest.mark.parametrize(("line", "leads"), [(40, False), (19, True)])
def test_another_sum_that_a_run_of_the_step_again_shows_comes_first(line, leads, by_hand):
    logs = [log(by_hand, number, came=BAD, look=joint(by_hand, line)) for number in range(2)]
    assert ("born in the reduce" in analyse(by_hand.run(*logs)).verdict.summary) is leads


def test_harm_of_ranks_that_were_in_no_such_sum_is_not_of_it(by_hand):
    seen = [log(by_hand, 0, came=BAD), log(by_hand, 1)]
    logs = [
        replace(one, records=tuple(part for part in one.records if not isinstance(part.event, Harm))) for one in seen
    ]
    other = by_hand.rank(2, by_hand.gradient(7), world=3)
    assert "born in the reduce" not in analyse(by_hand.run(*logs, other, world=3)).verdict.summary


def test_facts_that_are_none_are_passed_over(by_hand):
    look = by_hand.found(7, facts={"halves": [[1], "x", [["reduce", 3, 1, "g"], "y", None, None]]})
    assert analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(7), look))).verdict.anomaly
