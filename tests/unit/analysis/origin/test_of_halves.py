"""A sum over ranks in float16 of what was finite on each: it is the origin, whoever used it first."""

import pytest

from nandiag.analysis import analyse

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


@pytest.mark.parametrize("largest", [None])
def test_it_is_none_where_the_part_of_one_rank_is_not_known(largest, by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, largest, look=by_hand.finite(7)))
    assert "born in the reduce" not in analyse(given).verdict.summary


def test_it_is_none_where_a_rank_found_the_op_that_made_its_own_bad(by_hand):
    given = by_hand.run(log(by_hand, 0, came=BAD), log(by_hand, 1, look=by_hand.found(7)))
    assert analyse(given).verdict.origin.op == "aten.log.default"


def test_facts_that_are_none_are_passed_over(by_hand):
    look = by_hand.found(7, facts={"halves": [[1], "x", [["reduce", 3, 1, "g"], "y", None, None]]})
    assert analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(7), look))).verdict.anomaly
