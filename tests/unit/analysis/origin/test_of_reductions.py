"""What a reduction made of what was finite on every rank, also of a figure that the loop keeps between its steps."""

import pytest

from nandiag.analysis import analyse


def came(by_hand, rank, **facts):
    handed = {"carried_by": "all_reduce", "group_ranks": [0, 1], "handed": ["all_reduce", [0, 1], 116, "0#0"]}
    line = ["/w/train.py", 19, "    dist.all_reduce(temp, op=dist.ReduceOp.PRODUCT)", "main", [4, 51]]
    told = {"given_finite": True, "as_it_came": True, "reduce": "product", "called_at": line, **handed, **facts}
    look = by_hand.found(
        26, source="received", phase="collective", outputs=(), inputs=(by_hand.fact(posinf=1, shape=()),), facts=told
    )
    return by_hand.rank(rank, by_hand.gradient(26), look)


def test_the_reduction_itself_is_the_origin_where_every_ranks_part_was_finite(by_hand):
    told = analyse(by_hand.run(came(by_hand, 0), came(by_hand, 1))).verdict
    assert told.summary == "+Inf born in the all_reduce (PRODUCT) of ranks 0-1 at step 26"
    assert (told.cause, told.confidence) == ("collective_overflow", "observed")
    assert (told.origin.line, told.origin.op, told.origin.function) == (19, "c10d.allreduce_.default", "main")
    assert told.origin.ranks == (0, 1)
    assert told.spread == ()
    assert "What each rank put in was finite; line 12 of train.py is the first to use what came out." in told.evidence
    assert "all_reduce multiplies what 2 ranks give (PRODUCT): the product left float32, which ends at 3.4e38" in (
        told.evidence
    )
    assert "dist.ReduceOp.SUM" in told.suggestions[0].code


@pytest.mark.parametrize(
    ("reduce", "call", "mended"),
    [
        ("sum", "dist.all_reduce(total)", "dist.all_reduce(total)"),
        # A mean adds up first, and would divide a second time.
        ("avg", "dist.all_reduce(total, op=dist.ReduceOp.AVG)", "dist.all_reduce(total, op=dist.ReduceOp.SUM)"),
    ],
)
def test_a_sum_is_divided_before_it_is_made(reduce, call, mended, by_hand):
    line = ["/w/train.py", 19, f"    {call}", "main", [4, 4 + len(call)]]
    logs = [came(by_hand, at, reduce=reduce, called_at=line) for at in (0, 1)]
    told = analyse(by_hand.run(*logs)).verdict
    assert told.summary == f"+Inf born in the all_reduce ({reduce.upper()}) of ranks 0-1 at step 26"
    assert told.suggestions[0].code == f"total /= dist.get_world_size()\n{mended}"


def test_what_was_reduced_steps_before_is_told_with_its_step(by_hand):
    told = analyse(by_hand.run(*(came(by_hand, at, exchanged_at_step=24) for at in (0, 1)))).verdict
    assert told.summary == "+Inf born in the all_reduce (PRODUCT) of ranks 0-1 at step 24, used at step 26"


@pytest.mark.parametrize(
    "facts",
    [{"given_finite": False}, {"as_it_came": False}, {"reduce": "max"}, {"handed": ["all_reduce", [0, 1], 7, "0#0"]}],
)
def test_it_is_none_where_one_rank_does_not_say_so(by_hand, facts):
    told = analyse(by_hand.run(came(by_hand, 0), came(by_hand, 1, **facts))).verdict
    assert "born in the all_reduce" not in told.summary
