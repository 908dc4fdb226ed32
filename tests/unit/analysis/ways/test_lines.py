"""The way by which damage came to a rank is told with the line of the script's call, of weights and buffers too."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Sent, Site

WAY = ("all_reduce", (0, 1), 7, "0#0")


def call(way="all_reduce", line=6):
    return Site(op=f"c10d::{way}.default", file="/w/train.py", line=line, source=f"    dist.{way}(p)")


def spread(by_hand, first, second, world=2):
    told = analyse(
        by_hand.run(by_hand.rank(0, *first, world=world), by_hand.rank(1, *second, world=world), world=world)
    )
    return {(one.what, one.ranks): one.via for one in told.verdict.spread}


def test_the_line_of_a_way_is_that_at_which_the_sender_called_it(by_hand):
    facts = {"carried_by": WAY[0], "group_ranks": [0, 1], "handed": [WAY[0], [0, 1], *WAY[2:]]}
    got = by_hand.found(5, source="received", phase="collective", outputs=(), facts=facts)
    vias = spread(by_hand, [by_hand.gradient(5), got], [Sent(*WAY, by_hand.found(5), call()), by_hand.gradient(5)])
    assert vias["gradient", (0,)] == "the script's all_reduce in line 6 of train.py, in the group of ranks 0-1"


@pytest.mark.parametrize(("lines", "told"), [((10, 10), ", in line 10 of train.py"), ((10, 20), ""), ((), "")])
def test_a_message_of_a_joint_replay_has_the_one_line_that_sent_anything_bad_there(by_hand, lines, told):
    """``batch_isend_irecv``: the replay numbers its own messages, not those of the run."""
    facts = {"carried_by": "recv", "group_ranks": [0, 1], "number": 4}
    got = by_hand.found(5, source="received", phase="collective", outputs=(), facts=facts)
    passed = by_hand.found(5, method="message", source="outside", phase="collective", outputs=())
    sent = [Sent("send", (0, 1), 27 + at, "0#0/0", passed, call("batch_isend_irecv", line))
            for at, line in enumerate(lines)]  # fmt: skip
    vias = spread(by_hand, [*sent, by_hand.gradient(5), by_hand.found(5)], [by_hand.loss(5), got])
    assert vias["loss", (1,)] == f"the message that rank 0 sent to rank 1{told}"


@pytest.mark.parametrize("what", ["parameter", "buffer", "frozen", "optimizer_state"])
def test_weights_and_buffers_came_by_what_a_rank_of_the_origin_gave(by_hand, what):
    sent = Sent("broadcast", (0, 1), 55, "0#0", by_hand.found(9), call("broadcast", 22))
    made = by_hand.found(8, phase="optimizer")
    vias = spread(
        by_hand, [by_hand.state(8, what=what, since=7)], [sent, by_hand.state(8, what=what, since=7), made]
    )  # fmt: skip
    assert vias[what, (0,)] == "the script's broadcast in line 22 of train.py, in the group of ranks 0-1"


def test_averaged_weights_bring_it_to_the_loss_of_another_rank_steps_later(by_hand):
    """Local SGD: rank 1 has been bad since step 4, and the ranks average every twelfth step."""
    outside = by_hand.found(12, method="message", source="outside", phase="collective", outputs=())
    sent = [Sent("all_reduce", (0, 1), at, "0#0", outside, call()) for at in range(2)]
    later = Sent("all_reduce", (0, 1), 9, "0#0", replace(outside, step=24), call("all_reduce", 60))
    vias = spread(
        by_hand, [by_hand.loss(12)], [by_hand.loss(4), by_hand.found(4), by_hand.state(4, since=3), *sent, later]
    )  # fmt: skip
    assert vias["loss", (0,)] == "the script's all_reduce in line 6 of train.py, in the group of ranks 0-1"


def test_what_was_given_at_two_lines_came_by_one_of_them(by_hand):
    sent = [Sent("all_reduce", (0, 1), at, "0#0", by_hand.found(8), call(line=at)) for at in (6, 9)]
    vias = spread(by_hand, [by_hand.state(8)], [*sent, by_hand.state(8), by_hand.found(8, phase="optimizer")])
    assert vias["parameter", (0,)] == (
        "the script's all_reduce in line 6 or line 9 of train.py, in the group of ranks 0-1"
    )


def test_what_the_rank_itself_gave_or_gave_to_others_is_no_way_to_it(by_hand):
    own = Sent("all_reduce", (0, 1), 6, "0#0", by_hand.found(8), call())
    off = Sent("send", (1, 2), 6, "0#0/0", by_hand.found(8), call("send"))
    back = Sent("send", (1, 0), 6, "0#0/0", by_hand.found(3), call("send"))
    made = by_hand.found(8, phase="optimizer")
    vias = spread(by_hand, [own, by_hand.state(8)], [off, back, by_hand.state(8), made], world=3)
    assert vias["parameter", (0,)] is None


def test_each_hop_of_a_ring_is_told_once_and_not_that_its_way_is_unknown(by_hand):
    wrote = by_hand.found(
        8, source="input", phase="data", micro_step=1, outputs=(), facts={"written_in_place": "div_"},
        site=Site(op="div_", file="/w/train.py", line=33, source="flat /= world"),
    )  # fmt: skip
    hops = [Sent("send", way, 5, "0#0/0", by_hand.found(8), call("send", 9)) for way in ((2, 0), (0, 1))]
    logs = [
        by_hand.rank(0, hops[1], by_hand.gradient(8), wrote, world=3),
        by_hand.rank(1, by_hand.gradient(8), wrote, world=3),
        by_hand.rank(2, hops[0], by_hand.loss(8), by_hand.gradient(8), by_hand.found(8), world=3),
    ]
    told = analyse(by_hand.run(*logs, world=3)).verdict
    assert told.origin.ranks == (2,)
    assert [(one.ranks, one.via) for one in told.spread] == [
        ((0,), "the message that rank 2 sent to rank 0, in line 9 of train.py"),
        ((1,), "the message that rank 0 sent to rank 1, in line 9 of train.py"),
    ]
    assert not any("is not known" in text for text in told.evidence)


def test_ranks_that_went_bad_alike_are_told_in_one_sentence(by_hand):
    wrote = by_hand.found(
        8, source="input", phase="data", micro_step=1, outputs=(), facts={"written_in_place": "div_"},
        site=Site(op="div_", file="/w/train.py", line=33, source="flat /= world"),
    )  # fmt: skip
    logs = [by_hand.rank(at, by_hand.gradient(8), wrote, world=3) for at in (0, 1)]
    last = by_hand.rank(2, by_hand.loss(8), by_hand.gradient(8), by_hand.found(8), world=3)
    told = analyse(by_hand.run(*logs, last, world=3)).verdict
    wanted = (
        "Ranks 0-1 went bad in the same step too, by what they wrote in line 33: whether that came from another rank "
        "is not known."
    )
    assert [text for text in told.evidence if "in the same step" in text] == [wanted]


def test_the_weight_of_which_the_birth_is_told_is_no_spread_of_it(by_hand):
    facts = {"weight": "second", "weight_is": "buffer", "birth": "op"}
    born = by_hand.found(10, method="record", phase="init", facts=facts)
    harm = by_hand.state(10, "second", what="buffer", phase="forward", since=9)
    assert analyse(by_hand.run(by_hand.rank(0), by_hand.rank(1, born, harm))).verdict.spread == ()


def test_what_broke_by_itself_on_another_rank_is_no_spread(by_hand):
    first = by_hand.rank(0, by_hand.loss(68), by_hand.found(68))
    other = by_hand.found(68, site=Site(op="aten.pow.Tensor_Scalar", file="/w/train.py", line=14), phase="loss")
    told = analyse(by_hand.run(first, by_hand.rank(1, by_hand.loss(68), other))).verdict
    assert any("Rank 1 went bad in the same step by itself" in text for text in told.evidence)
    assert told.spread == ()
