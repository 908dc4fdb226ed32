"""Ranks that waited in vain: who is named, at which call, and who is not."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Finished, Raised
from nandiag.events.standing import CallFact, FrameFact, Standing
from nandiag.store.run import HangEnd
from tests.unit.analysis.hangs.made_up import CLOSED, RESET, TIMEOUT, at, call, ended, numbered, rank, run, stands


def hung(*logs, world=2):
    """A run that nandiag ended because of its --hang-timeout."""
    ends = [ended(log.rank, signal=15, ours=True) for log in logs]
    return analyse(run(*logs, ends=ends, hang=HangEnd(30.0, tuple(range(world))), world=world))


def test_a_rank_that_is_stuck_elsewhere_is_named_with_both_lines():
    report = hung(
        rank(0, stands(call(), call(state="waits", line=12))),
        rank(1, stands(call(), stack=[FrameFact("/lib/q.py", 3, "get", "internal"), at(77, "load")])),
    )
    hang = report.hang
    assert (hang.slug, hang.behind, hang.waiting, hang.sequence) == ("collective_missing", (1,), (0,), 2)
    assert [(one.ranks, one.place.line, one.behind) for one in hang.stands] == [((0,), 12, False), ((1,), 77, True)]
    assert report.verdict.summary.startswith(
        "rank 1 did not come to all_reduce 2 of the default group, in which rank 0"
    )
    assert report.findings[0].slug == "collective_missing"
    assert {state.state for state in report.ranks.values()} == {"victim"}
    assert not report.verdict.anomaly


def test_a_time_out_without_ours_names_the_rank_that_left_and_not_the_one_that_raised():
    logs = (
        rank(0, stands(call(), call(state="raised", line=12, error="RuntimeError: Timed out"), why="raised"), TIMEOUT),
        rank(1, stands(call(), why="left"), Finished(9)),
    )
    report = analyse(run(*logs, ends=[ended(0, 1), ended(1, 0)]))
    assert report.hang.behind == (1,)
    assert report.hang.summary == "rank 1 left the script while rank 0 waited in all_reduce 2 of the default group"
    assert report.ranks["0"].state == "victim"
    assert not any(one.slug == "rank_raised" for one in report.findings)


def looped(rank_number, *, skipped):
    """Six steps of two calls each, then a barrier; the rank left the calls of one step out."""
    calls = [call(line=line, step=step) for step in range(6) for line in (14, 15) if step != skipped]
    if rank_number:
        return [*calls, call("barrier", 16, "raised", None, 6)]
    return [*calls[:-1], replace(calls[-1], state="raised")]


def test_a_call_that_was_left_out_is_found_by_its_step_though_the_ranks_parted_later():
    logs = (
        rank(0, stands(*looped(0, skipped=None)), TIMEOUT),
        rank(1, stands(*looped(1, skipped=3)), CLOSED),
    )
    hang = analyse(run(*logs, ends=[ended(0, 1), ended(1, 1)])).hang
    assert (hang.slug, hang.behind, hang.step) == ("collective_missing", (1,), 3)
    assert "rank 1 left out all_reduce at train.py:15 in step 3" in hang.summary
    assert "made no call of all_reduce, the others 2" in hang.evidence[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (call(state="raised"), call("barrier", 20, "waits", None), "all_reduce on rank 0, barrier on rank 1"),
        (call(state="raised"), call(state="waits", shape=(5,)), "float32 [4] on rank 0, float32 [5] on rank 1"),
        (call(state="raised"), call(state="waits", dtype="float16"), "float32 [4] on rank 0, float16 [4] on rank 1"),
        (call(state="raised", reduce="max"), call(state="waits"), "max on rank 0, sum on rank 1"),
        (
            call("broadcast", state="raised", peer=0),
            call("broadcast", state="waits", peer=1),
            "rank 0 on rank 0, rank 1 on rank 1",
        ),
    ],
)
def test_calls_that_differ_are_named_as_such_and_of_two_ranks_none_is_blamed(ours, theirs, words):
    logs = (rank(0, stands(call(), ours), TIMEOUT), rank(1, stands(call(), theirs)))
    hang = analyse(run(*logs, ends=[ended(0, 1), ended(1, signal=15, ours=True)])).hang
    assert hang.slug == "collective_mismatch"
    assert hang.behind == ()
    assert words in hang.summary
    assert len(hang.stands) == 2


def test_equal_sizes_and_a_default_reduction_are_no_difference():
    logs = (
        rank(0, stands(call(state="waits", shape=(4,), reduce="sum"))),
        rank(1, stands(call(state="waits", shape=(2, 2)))),
    )
    assert hung(*logs).hang.slug == "collective_stuck"


def test_of_four_ranks_the_odd_one_is_named():
    same = [rank(number, stands(call(state="waits"), world=4), world=4) for number in (0, 1, 3)]
    report = hung(*same, rank(2, stands(call("barrier", 30, "waits", None), world=4), world=4), world=4)
    assert report.hang.behind == (2,)
    assert report.hang.stands[0].ranks == (0, 1, 3)


def test_of_two_ranks_the_one_that_breaks_the_order_of_its_loop_is_named():
    loop = [one for _ in range(3) for one in (call(line=10), call("broadcast", line=11, peer=0))]
    logs = (
        rank(0, stands(*loop, call(line=10, state="waits"))),
        rank(1, stands(*loop, call("broadcast", line=11, peer=0, state="waits"))),
    )
    assert hung(*logs).hang.behind == (1,)


def test_ranks_that_wait_for_each_other_in_two_groups():
    both = {"1": ((0, 1),), "2": ((0, 1),)}
    logs = (
        rank(0, stands(call(group="1", state="waits"), groups=both)),
        rank(1, stands(call(group="2", line=11, state="waits"), groups=both)),
    )
    hang = hung(*logs).hang
    assert (hang.slug, hang.waiting, hang.behind) == ("collective_order", (0, 1), ())


def test_who_waits_for_a_waiting_rank_is_not_named():
    groups = {"0": ((0, 2),), "1": ((1, 2),)}
    logs = (
        rank(0, stands(call(state="waits"), groups=groups), world=3),
        rank(1, stands(call(group="1", state="waits", line=20), groups=groups), world=3),
        rank(2, stands(groups=groups, stack=[at(50)]), world=3),
    )
    assert hung(*logs, world=3).hang.behind == (2,)
    logs = (logs[0], logs[1], rank(2, stands(call(state="waits"), groups=groups, stack=[at(50)]), world=3))
    hang = hung(*logs, world=3).hang
    assert hang.slug == "collective_order"


def test_a_message_that_was_never_sent():
    logs = (
        rank(0, stands(call("recv", 40, "raised", peer=1)), TIMEOUT),
        rank(1, stands(why="left"), Finished(3)),
    )
    hang = analyse(run(*logs, ends=[ended(0, 1), ended(1, 0)])).hang
    assert (hang.slug, hang.behind, hang.waiting) == ("message_missing", (1,), (0,))
    assert "message 1 of rank 1, which was never sent" in hang.summary


def test_calls_of_ddp_in_the_backends_record_count():
    def record(count, *, own=()):
        made = [CallFact("all_reduce", "0", 0, "issued", native=number + 1, dtype="float", shapes=((20,),))
                for number in range(count)]  # fmt: skip
        return stands(*own, native=made, stack=[at(30)])

    hang = hung(rank(0, record(8)), rank(1, record(7))).hang
    assert (hang.slug, hang.sequence, hang.behind) == ("collective_missing", 8, (1,))


def test_without_calls_the_places_are_told():
    stack = [FrameFact("/x/torch/utils/data/dataloader.py", 5, "_try_get_data", "torch"), at(31)]
    report = hung(rank(0, stands(groups={"": ()}, stack=stack), world=1), world=1)
    assert report.hang.slug == "standstill"
    assert report.hang.stands[0].doing == "was here, waiting for a batch of its DataLoader"


def test_a_rank_that_failed_by_itself_is_no_hang():
    logs = (
        rank(0, stands(call(state="raised")), CLOSED),
        rank(1, stands(why="raised"), Raised("ValueError", "bad data", "", 3)),
    )
    report = analyse(run(*logs, ends=[ended(0, 1), ended(1, 1)]))
    assert report.hang is None
    assert "ValueError" in report.verdict.summary


def test_a_failure_in_a_call_that_all_made_alike_is_no_hang():
    own = Raised("RuntimeError", "Expected tensor on the same device", "", 3)
    logs = (rank(0, stands(call(state="raised")), own), rank(1, stands(call(state="waits"))))
    assert analyse(run(*logs, ends=[ended(0, 1), ended(1, signal=15, ours=True)])).hang is None


def test_an_error_that_the_script_catches_itself_is_seen_too():
    logs = (
        rank(
            0, stands(call(), call(state="raised", line=12, error="RuntimeError: Timed out"), why="left"), Finished(9)
        ),
        rank(1, stands(call(), stack=[at(50)])),
    )
    report = analyse(run(*logs, ends=[ended(0, 1), ended(1, signal=15, ours=True)]))
    assert report.hang.behind == (1,)


def test_a_run_that_went_well_has_no_hang():
    logs = (rank(0, stands(call(), call(), why="left"), Finished(9)), rank(1, stands(call(), why="left"), Finished(9)))
    assert analyse(run(*logs, ends=[ended(0, 0), ended(1, 0)], state="succeeded")).hang is None


@pytest.mark.parametrize(("moves", "known"), [(50, True), (51, False)])
def test_a_run_ended_by_the_user_tells_who_waited_unless_they_went_on_since(moves, known):
    logs = (
        rank(0, stands(call(), call(state="waits")), moves=moves),
        rank(1, stands(call(), stack=[at(50)]), moves=moves),
    )
    report = analyse(run(*logs, ends=[ended(0, signal=2, ours=True), ended(1, signal=2, ours=True)], state="signalled"))
    assert (report.hang is not None) is known


@pytest.mark.parametrize(("still", "known"), [(9.0, True), (0.2, False)])
def test_ctrl_c_tells_who_waited_in_a_backward_if_no_rank_had_moved_for_a_while(still, known):
    native = [CallFact("all_reduce", "0", 0, "issued", native=at + 1, dtype="float", shapes=((5,),)) for at in range(8)]
    inside = replace(RESET, type="KeyboardInterrupt", message="")
    stuck = replace(inside, traceback='Traceback:\n  File "/home/u/train.py", line 11, in get\n    time.sleep(1)\n')
    logs = (
        rank(0, replace(stands(why="raised", native=native), still=9.0), inside),
        rank(1, replace(stands(why="raised", native=native[:7]), still=still), stuck),
    )
    ends = [ended(0, signal=2, ours=True), ended(1, signal=2, ours=True)]
    hang = analyse(run(*logs, ends=ends, state="signalled")).hang
    assert (hang is not None) is known
    if hang:
        assert (hang.behind, hang.sequence) == ((1,), 8)
        assert [(one.ranks, one.place.line) for one in hang.stands] == [((0,), 22), ((1,), 11)]


def test_the_stack_by_signal_is_newer_and_gets_its_source_from_the_ranks_own_word():
    own = rank(1, stands(call(), stack=[at(50)]), stack=[FrameFact("/home/u/train.py", 50, "train")])
    moved = rank(1, stands(call(), stack=[at(50)]), stack=[FrameFact("/home/u/train.py", 51, "train")])
    waiting = rank(0, stands(call(), call(state="waits")))
    assert hung(waiting, own).hang.stands[1].place.source == "    line_50()"
    assert hung(waiting, moved).hang.stands[1].place.line == 51


def test_a_stack_of_the_interpreters_end_does_not_hide_the_line_that_raised():
    ending = [FrameFact("/usr/lib/python3.11/weakref.py", 666, "_exitfunc", "internal")]
    logs = (
        rank(0, stands(call(), call(state="raised"), call("barrier", 30), why="raised"), RESET, stack=ending),
        rank(1, stands(call(), stack=[at(50)])),
    )
    hang = hung(*logs).hang
    assert [(one.ranks, one.place.line) for one in hang.stands] == [((0,), 22), ((1,), 50)]


def test_a_rank_that_left_no_word_is_told_as_such():
    report = hung(rank(0, stands(call(state="waits"))))
    assert report.hang.slug in {"collective_missing", "standstill"}
    assert report.hang.behind == (1,)


def destroying(*calls, native):
    """A rank that destroyed its groups and ended: its counts are only in that call."""
    last = replace(call("destroy_process_group", 36, "done", None, 12), seq=len(calls), native=native)
    return Standing("left", 1000.0, 50, 12, (), (*numbered(calls), last))


def barriers(*lines, state="done"):
    made = [call("barrier", line, state if line == lines[-1] else "done", None, 12) for line in lines]
    return [replace(one, native=3 + at, native_end=4 + at) for at, one in enumerate(made)]


def test_a_rank_that_destroyed_its_groups_and_left_is_known_by_the_count_it_had():
    steps = [replace(call(step=step), native=step, native_end=step + 1) for step in range(3)]
    native = [
        CallFact(op, "0", 0, "issued", native=at + 1, dtype="float", shapes=((4,),))
        for at, op in enumerate(["all_reduce"] * 3 + ["barrier"] * 2)
    ]
    logs = (
        rank(0, stands(*steps, *barriers(22, 35, state="raised"), why="raised", step=12, native=native), CLOSED),
        rank(1, destroying(*steps, *barriers(35), native=4), Finished(12)),
    )
    hang = analyse(run(*logs, ends=[ended(0, 1), ended(1, 0)])).hang
    assert (hang.slug, hang.behind, hang.sequence) == ("collective_missing", (1,), 5)
    assert hang.summary.startswith("rank 1 left out barrier at train.py:22 in step 12; rank 0 waited in vain")


def test_calls_of_ddp_count_for_a_rank_that_destroyed_its_groups():
    native = [
        CallFact("all_reduce", "0", 0, "issued", native=at + 1, dtype="float", shapes=((4,),)) for at in range(21)
    ]
    logs = (
        rank(0, stands(why="raised", native=native), CLOSED),
        rank(1, destroying(native=20), Finished(12)),
    )
    hang = analyse(run(*logs, ends=[ended(0, 1), ended(1, 0)])).hang
    assert hang.summary == "rank 1 left the script while rank 0 waited in all_reduce 21 of the default group"
