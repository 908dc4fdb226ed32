"""Ranks that their backend aborted in C++: what their calls, of which only new kinds are on record, still tell."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events.standing import CallFact, FrameFact, GroupFact, Standing
from tests.unit.analysis.hangs.made_up import RESET, at, call, ended, rank, run, stands


def test_a_rank_that_its_backend_aborted_is_laid_beside_calls_of_ddp():
    native = [
        CallFact("all_reduce", "0", 0, "issued", native=at + 1, dtype="float", shapes=((161,),)) for at in range(21)
    ]
    aborted = Standing(
        "crashed", 1000.0, 2, 15,
        (GroupFact("0", "default_pg", ((0, 1),), 1, 20),), (call(line=29, state="issued", shape=(), native=20),),
    )  # fmt: skip
    aborted = replace(aborted, calls=(replace(aborted.calls[0], shapes=((),), dtype="float32"),))
    logs = (rank(0, stands(why="raised", native=native), RESET), rank(1, aborted))
    report = analyse(run(*logs, ends=[ended(0, signal=15, ours=True), ended(1, signal=6)]))
    assert report.hang.slug == "collective_mismatch"
    assert "all_reduce 21 of the default group with different tensors" in report.hang.summary
    assert [(one.ranks, one.place.line) for one in report.hang.stands] == [((0,), 22), ((1,), 29)]
    assert "same order" in report.hang.help[1]
    assert "Join([model])" in report.hang.help[0]
    assert report.hang.step is None  # of the two words on it none is the newer
    assert any("is the exchange of gradients in backward()" in one for one in report.hang.evidence)
    assert {one.state for one in report.ranks.values()} == {"victim"}


def test_a_rank_that_was_ended_before_it_told_what_it_raised_is_placed_by_its_own_word():
    native = [
        CallFact("all_reduce", "0", 0, "issued", native=at + 1, dtype="float", shapes=((161,),)) for at in range(21)
    ]
    stack = (
        FrameFact("/x/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward", "torch"),
        at(22, "epoch"),
    )
    met = call(line=29, state="waits", shape=(), step=18)
    aborted = Standing(
        "crashed", 1000.0, 2, 18,
        (GroupFact("0", "default_pg", ((0, 1),), 1, 20),),
        (replace(met, shapes=((),), dtype="float32", native=20),),
    )  # fmt: skip
    logs = (rank(0, stands(why="raised", native=native, stack=stack, step=18)), rank(1, aborted))
    hang = analyse(run(*logs, ends=[ended(0, signal=15, ours=True), ended(1, signal=6)])).hang
    assert [(one.ranks, one.place.line) for one in hang.stands] == [((0,), 22), ((1,), 29)]
    assert hang.step == 18
    assert hang.evidence[0] == (
        "The call of rank 0 is the exchange of gradients in backward() of step 18, that of rank 1 is the script's own."
    )


def metric_loop(last):
    """Steps of a [8] and a [1] call each; after every ten calls a third one, which ``last`` says to make or not."""
    made = []
    for step in range(10):
        made += [call(line=18, shape=(8,), step=step), call(line=18, shape=(1,), step=step)]
        if step == 4 or (step == 9 and last):
            made.append(call(line=25, shape=(), step=step + 1))
    made = [replace(one, shapes=((),), dtype="float32") if one.place.line == 25 else one for one in made]
    return [replace(one, seq=at, native=at, native_end=at + 1) for at, one in enumerate(made)]


@pytest.mark.parametrize("odd", [False, True])
def test_an_aborted_rank_whose_last_call_is_not_on_record_was_in_the_one_that_was_due(odd):
    mine = metric_loop(last=True)
    known = [replace(one, state="issued", native_end=None) for one in (mine[0], mine[1], mine[10])]
    theirs = metric_loop(last=False)
    if odd:  # one step more than the time before: then nothing tells who is in the wrong
        theirs[-1:] = [theirs[-1], *[replace(one, step=10) for one in theirs[:2]]]
    met = replace(call(line=18, shape=(8,), state="raised", step=10), native=len(theirs), native_end=len(theirs) + 1)
    aborted = Standing("crashed", 1000.0, 2, 10, (GroupFact("0", "default_pg", ((0, 1),), 11, 10),), tuple(known))
    logs = (rank(0, aborted), rank(1, stands(*theirs, met, why="raised"), RESET))
    hang = analyse(run(*logs, ends=[ended(0, signal=6), ended(1, signal=15, ours=True)])).hang
    assert [(one.ranks, one.place.line) for one in sorted(hang.stands, key=lambda one: one.ranks)] == [
        ((0,), 25),
        ((1,), 18),
    ]
    assert any("inferred" in one for one in hang.evidence)
    if odd:
        assert (hang.slug, hang.behind) == ("collective_mismatch", ())
        assert "float32 [scalar] on rank 0, float32 [8] on rank 1" in hang.summary
    else:
        assert (hang.slug, hang.behind) == ("collective_missing", (1,))
        assert "rank 1 left out all_reduce at train.py:25 in step 10" in hang.summary


@pytest.mark.parametrize(("shape", "slug"), [((6,), "collective_mismatch"), ((1,), "collective_missing")])
def test_a_call_at_the_line_that_was_due_is_that_call_though_its_tensor_is_another(shape, slug):
    """Unless its tensor is one that this line is known for: then it may belong to the next turn."""
    turn = [call(line=9, shape=(4,)), call(line=9, shape=(1,))]
    theirs = [replace(one, step=step) for step in range(4) for one in turn]
    met = call(line=9, shape=shape, state="raised", step=4)
    told = [replace(one, native=at, native_end=at + 1) for at, one in enumerate([*theirs, met])]
    aborted = Standing("crashed", 1000.0, 2, 4, (GroupFact("0", "default_pg", ((0, 1),), 1, 0),), (
        replace(turn[0], state="issued", native=0),
    ))  # fmt: skip
    logs = (rank(0, aborted), rank(1, stands(*told, why="raised"), RESET))
    hang = analyse(run(*logs, ends=[ended(0, signal=6), ended(1, signal=15, ours=True)])).hang
    assert (hang.slug, hang.behind) == (slug, (1,) if slug == "collective_missing" else ())
    if slug == "collective_mismatch":
        assert "float32 [4] on rank 0, float32 [6] on rank 1" in hang.summary


def crashed(*calls):
    """A rank of which no more is left than the new kinds of its calls, as they began."""
    known = [replace(one, seq=at, native=at, state="issued") for at, one in enumerate(calls)]
    return Standing("crashed", 0.0, 0, 0, (GroupFact("0", "default_pg", ((0, 1),), len(known), None),), tuple(known))


def test_ranks_that_all_ended_before_they_could_tell_their_count_met_in_their_newest_calls():
    logs = (
        rank(0, crashed(call(shape=(3,)), call(line=20))),
        rank(1, crashed(call(shape=(3,)), call(line=20, shape=(5,)))),
    )
    report = analyse(run(*logs, ends=[ended(0, signal=6), ended(1, signal=15, ours=True)]))
    assert (report.hang.slug, report.hang.sequence, report.hang.behind) == ("collective_mismatch", 2, ())
    assert "float32 [4] on rank 0, float32 [5] on rank 1" in report.hang.summary
    assert {one.state for one in report.ranks.values()} == {"victim"}


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param([call(shape=(3,)), call(line=20)], id="alike"),
        pytest.param([call(shape=(3,)), call(line=20, shape=(5,)), call(line=30)], id="one-went-on"),
        pytest.param([call(shape=(3,))], id="not-on-record"),
    ],
)
def test_calls_that_need_not_have_met_tell_nothing_of_ranks_that_could_not_tell_their_count(theirs):
    logs = (rank(0, crashed(call(shape=(3,)), call(line=20))), rank(1, crashed(*theirs)))
    report = analyse(run(*logs, ends=[ended(0, signal=6), ended(1, signal=15, ours=True)]))
    assert report.hang is None
    assert report.ranks["0"].state == "killed"


def within(line, inner="/x/torch/distributed/distributed_c10d.py"):
    """The stack of a rank that was ended in the call of a line."""
    frames = ((inner, 3252, "torch"), ("/home/u/train.py", line, "user"))
    return tuple(FrameFact(file, number, "all_reduce", kind) for file, number, kind in frames)


LOOP = call(line=23, shape=(8,)), call(line=29, shape=()), call(line=38, reduce="min", shape=())
STALE = stands(LOOP[0], replace(LOOP[1], state="waits"), moves=6)


def gone_on(number, line, *inner, standing=STALE):
    """A rank that last wrote where it stood in its first step, and was ended much later in the call of ``line``."""
    known = replace(standing, calls=(*standing.calls, replace(LOOP[2], seq=2, state="issued")))
    return rank(number, known, stack=within(line, *inner), moves=80)


@pytest.mark.parametrize("inner", [(), ("/x/nandiag/runtime/collectives/wraps.py",)])
def test_ranks_that_were_all_ended_before_they_could_say_anything_are_laid_side_by_side_by_their_stacks(inner):
    ends = [ended(0, signal=15, ours=True), ended(1, signal=6)]
    hang = analyse(run(gone_on(0, 23, *inner), gone_on(1, 38), ends=ends)).hang
    assert (hang.slug, hang.sequence, hang.behind) == ("collective_mismatch", None, ())
    assert "called all_reduce of the default group with different reductions" in hang.summary
    assert sorted((one.ranks, one.place.line) for one in hang.stands) == [((0,), 23), ((1,), 38)]
    assert not any("waited in all_reduce of float32 [scalar]" in one.sentence for one in hang.stands)
    assert "told by the stack" in hang.evidence[0]


@pytest.mark.parametrize("lines", [(38, 38), (23, 50)])
def test_stacks_in_one_call_or_in_one_that_is_not_known_tell_of_no_mismatch(lines):
    ends = [ended(0, signal=15, ours=True), ended(1, signal=6)]
    assert analyse(run(*(gone_on(at, line) for at, line in enumerate(lines)), ends=ends)).hang is None


@pytest.mark.parametrize("line", [29, 38])
def test_a_rank_that_was_aborted_stood_where_its_stack_says(line):
    told = [replace(one, step=step, native=None) for step in range(5) for one in LOOP]
    raised = stands(*told, replace(LOOP[0], state="raised", step=5), why="raised")
    ends = [ended(0, signal=15, ours=True), ended(1, signal=6)]
    hang = analyse(run(rank(0, raised), gone_on(1, line), ends=ends)).hang
    assert (hang.slug, hang.sequence) == ("collective_mismatch", 16)
    assert sorted((one.ranks, one.place.line) for one in hang.stands) == [((0,), 23), ((1,), line)]
    assert any("told by the stack" in one for one in hang.evidence)


def test_a_rank_that_went_on_since_it_told_its_count_is_not_said_to_have_left_calls_out():
    told = [replace(one, step=step) for step in range(5) for one in LOOP]
    raised = stands(*told, replace(LOOP[0], state="raised", step=5), why="raised")
    logs = (rank(0, raised, RESET), rank(1, STALE, moves=80))
    hang = analyse(run(*logs, ends=[ended(0, signal=15, ours=True), ended(1, signal=6)])).hang
    assert hang is None or hang.sequence == 16


def test_a_rank_that_c_code_ended_outside_of_its_calls_is_what_the_others_waited_for():
    """What it did not come to is no fault of its calls: it is told with its signal, and the line of its stack."""
    done = call(line=9, shape=(4,), state="over", native=0)
    waiting = stands(replace(done, native_end=1), call(line=16, state="raised", native=1, native_end=2), why="raised")
    aborted = crashed(call(line=9, shape=(4,)))
    logs = (rank(0, waiting, RESET), rank(1, aborted, stack=(at(10, "<module>"),), moves=80))
    report = analyse(run(*logs, ends=[ended(0, signal=15, ours=True), ended(1, signal=6)]))
    assert report.hang is None
    text = " ".join(one.text for one in report.findings) + report.verdict.summary
    assert "rank 1 was killed by signal 6 (SIGABRT), in " in text.replace("Rank 1", "rank 1")
    assert ":10" in text
