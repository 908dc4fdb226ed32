"""How ranks ended: killed, raised, stopped, and the victims of others."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Attached, Finished, ProbeDark, Raised, Record, Skipped, Stopping, Warned
from nandiag.store.reader import RankLog, RunRecord
from nandiag.store.run import AgentEnd, RunInfo


def states(report):
    return {rank: state.state for rank, state in report.ranks.items()}


def test_a_killed_rank_and_its_victims(by_hand):
    record = by_hand.run(
        by_hand.rank(0, steps=12), by_hand.rank(1, steps=12),
        ends=[by_hand.ended(0, signal=15, by_launcher=True), by_hand.ended(1, signal=9)],
    )  # fmt: skip
    report = analyse(record)
    assert states(report) == {"0": "victim", "1": "killed"}
    assert (report.ranks["1"].signal, report.ranks["1"].last_step) == (9, 11)
    assert not report.verdict.anomaly
    assert report.verdict.summary == (
        "rank 1 was killed by signal 9 (SIGKILL), last seen at step 11; no anomaly in 2 ranks, 12 steps"
    )
    assert {one.slug for one in report.findings} == {"rank_killed", "rank_victim"}


def test_a_stop_for_harm_that_was_told_a_step_before_names_that_step(by_hand):
    """Ranks that hold parts of the weights agree on it before the next update, and all have told theirs by then."""
    stop = Stopping(6, "auto", "stop", "another rank saw harm")
    record = by_hand.run(by_hand.rank(0, stop), by_hand.rank(1, by_hand.state(5, since=4), stop))
    assert "nandiag stopped the run at step 6 on ranks 0-1: harm of step 5." in [
        one.text for one in analyse(record).findings
    ]
    own = replace(stop, reason="non-finite gradient")
    record = by_hand.run(by_hand.rank(0, stop), by_hand.rank(1, by_hand.gradient(6), own))
    said = [one.text for one in analyse(record).findings]
    assert "nandiag stopped the run at step 6 on rank 0: another rank saw harm." in said


def test_harm_before_the_kill_is_the_verdict_all_the_same(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.gradient(5), steps=6), by_hand.rank(1, by_hand.loss(5), steps=5),
        ends=[by_hand.ended(0, signal=15, by_launcher=True), by_hand.ended(1, signal=9)],
    )  # fmt: skip
    report = analyse(record)
    assert report.verdict.anomaly
    assert report.verdict.origin.ranks == (1,)
    assert states(report)["1"] == "killed"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "[/pytorch/third_party/gloo/x.cc:81] Connection closed by peer [127.0.0.1]:3457"),
        ("torch.distributed.DistBackendError", "NCCL error in: x"),
    ],
)
def test_a_rank_that_lost_its_peer_is_a_victim_and_not_to_blame(by_hand, kind, message):
    raised = Raised(kind, message, "Traceback", 5)
    record = by_hand.run(
        by_hand.rank(0, raised), by_hand.rank(1, steps=5), ends=[by_hand.ended(0, 1), by_hand.ended(1, signal=9)]
    )
    assert states(analyse(record)) == {"0": "victim", "1": "killed"}


def test_a_lost_connection_with_no_other_failure_stays_the_failure(by_hand):
    raised = Raised("RuntimeError", "Connection reset by peer", "Traceback", 5)
    record = by_hand.run(by_hand.rank(0, raised), by_hand.rank(1, steps=5), ends=[by_hand.ended(0, 1)])
    assert states(analyse(record))["0"] == "raised"


def test_an_exception_is_told_by_type_and_first_line(by_hand):
    raised = Raised("ValueError", "bad shape\nmore", "Traceback", 5)
    record = by_hand.run(
        by_hand.rank(0, raised), by_hand.rank(1),
        ends=[by_hand.ended(0, 1), by_hand.ended(1, signal=15, by_launcher=True)],
    )  # fmt: skip
    report = analyse(record)
    assert states(report) == {"0": "raised", "1": "victim"}
    assert report.findings[0].text == "Rank 0 raised ValueError: bad shape, before the update of step 5."


TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 35, in <module>
    out = model(ids)
  File "/home/me/parts.py", line 7, in forward
    return self.words(ids)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
  File "/src/nandiag/runtime/collectives/wraps.py", line 90, in called
    return function(*args, **kwargs)
  File "<string>", line 1, in <module>
IndexError: index out of range in self
"""


@pytest.mark.parametrize(("step", "when"), [(9, ", before the update of step 9"), (0, "")])
def test_an_exception_is_told_by_the_innermost_line_of_the_script(by_hand, step, when):
    raised = Raised("IndexError", "index out of range in self", TRACE, step)
    report = analyse(by_hand.run(by_hand.rank(0, raised, world=1), ends=[by_hand.ended(0, 1)], world=1))
    told = "Rank 0 raised IndexError: index out of range in self, in parts.py:7"
    assert report.findings[0].text == f"{told}{when}."


def test_a_rank_that_an_argument_ended_made_no_update_of_the_step_that_is_told_of_it(by_hand):
    refused = Warned("argument_refused", 11, {"param": "scale", "law": "Normal"}, at_harm=True)
    record = by_hand.run(
        by_hand.rank(0, refused, Raised("ValueError", "Expected parameter scale", "Traceback", 11), world=1),
        ends=[by_hand.ended(0, 1)], world=1,
    )  # fmt: skip
    summary = analyse(record).verdict.summary
    assert summary.endswith("before the update of step 11; no anomaly in 1 rank, 11 steps")


def test_a_stop_of_ours_is_no_failure(by_hand):
    stop = Stopping(5, "auto", "stop", "non-finite gradient (fc.weight)")
    record = by_hand.run(
        *(by_hand.rank(n, by_hand.loss(5), stop, by_hand.finished(5, 0, 4)) for n in (0, 1)),
        ends=[by_hand.ended(0, 0), by_hand.ended(1, 0)],
    )
    report = analyse(record)
    assert states(report) == {"0": "stopped", "1": "stopped"}
    (told,) = [one.text for one in report.findings if one.slug == "stopped"]
    assert told == "nandiag stopped the run at step 5 on ranks 0-1: non-finite gradient (fc.weight)."


def test_finished_and_exited_and_unfinished(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.finished(9), world=4), by_hand.rank(1, by_hand.finished(9), world=4),
        by_hand.rank(2, world=4), by_hand.rank(3, world=4, steps=3),
        ends=[by_hand.ended(0, 0), by_hand.ended(1, 7), by_hand.ended(2, 0)], world=4,
    )  # fmt: skip
    report = analyse(record)
    assert states(report) == {"0": "finished", "1": "exited", "2": "finished", "3": "unfinished"}
    assert any("Rank 3: no end was written" in note for note in report.notes)


def test_what_a_scaler_left_out_last_is_no_step_more(by_hand):
    """The update that it left out has the number that the next one would have."""
    skip = Skipped(29, 2.0**19, 1, 11, 1.5)
    record = by_hand.run(by_hand.rank(0, skip, Finished(29, 11), world=1), ends=[by_hand.ended(0, 0)], world=1)
    report = analyse(record)
    assert report.ranks["0"].last_step == 28
    assert report.verdict.summary == "no anomaly in 1 rank, 29 steps, and 11 more that GradScaler left out"


def test_an_abort_after_the_last_word_does_not_count_against_the_script(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.finished(9), world=1), ends=[by_hand.ended(0, signal=6)], world=1)
    report = analyse(record)
    assert (report.ranks["0"].state, report.ranks["0"].signal) == ("finished", 6)
    assert report.verdict.summary == (
        "the run failed: rank 0 was ended by signal 6 (SIGABRT) after its script had ended; "
        "no anomaly in 1 rank, 9 steps"
    )
    (note,) = report.notes
    assert note.startswith("Rank 0: ended by signal 6 (SIGABRT) while Python shut down, after the script had ended")


@pytest.mark.parametrize(("code", "signal", "state"), [(5, None, "exited"), (None, 2, "killed"), (None, 9, "killed")])
def test_last_words_do_not_hide_how_a_rank_ended(by_hand, code, signal, state):
    record = by_hand.run(by_hand.rank(0, by_hand.finished(3), world=1), ends=[by_hand.ended(0, code, signal)], world=1)
    report = analyse(record)
    assert report.ranks["0"].state == state
    assert report.verdict.summary.startswith("rank 0 ")
    assert report.verdict.summary.endswith("; no anomaly in 1 rank, 3 steps")


def test_a_finished_rank_that_its_launcher_ended_has_finished(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.finished(3)), by_hand.rank(1, steps=3),
        ends=[by_hand.ended(0, signal=15, by_launcher=True), by_hand.ended(1, signal=9)],
    )  # fmt: skip
    assert states(analyse(record)) == {"0": "finished", "1": "killed"}


def test_an_interrupt_of_the_script_itself_is_told(by_hand):
    raised = Raised("KeyboardInterrupt", "", "Traceback", 3)
    record = by_hand.run(by_hand.rank(0, raised, world=1), ends=[by_hand.ended(0, signal=2)], world=1)
    report = analyse(record)
    assert states(report) == {"0": "raised"}
    assert report.verdict.summary == (
        "rank 0 raised KeyboardInterrupt, before the update of step 3; no anomaly in 1 rank, 3 steps"
    )


def test_an_interrupt_of_the_launcher_is_no_failure_of_its_ranks(by_hand):
    raised = Raised("KeyboardInterrupt", "", "Traceback", 3)
    ends = (by_hand.ended(0, signal=2, by_launcher=True), by_hand.ended(1, signal=2, by_launcher=True))
    agent = AgentEnd("node0", 1, 0, 130, "signalled", signal=2, ranks=ends)
    report = analyse(by_hand.run(by_hand.rank(0, raised), by_hand.rank(1, steps=3), agents=(agent,)))
    assert states(report) == {"0": "victim", "1": "victim"}
    assert report.verdict.summary == "the run was ended by signal 2 (SIGINT); no anomaly in 2 ranks, 3 steps"
    assert [one.text for one in report.findings] == ["Ranks 0-1 were ended by the launcher."]


def test_a_failure_that_no_rank_tells_of_comes_first_all_the_same(by_hand):
    agent = AgentEnd("node0", 1, 0, 1, "failed")
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.finished(3), world=1), agents=(agent,), world=1))
    assert report.verdict.summary == (
        "the run failed, and no rank is known to have failed; no anomaly in 1 rank, 3 steps"
    )


def test_a_rank_that_was_left_alone_by_a_stop_is_its_victim(by_hand):
    stop = Stopping(5, "auto", "stop", "NaN loss")
    lost = Raised("RuntimeError", "Connection closed by peer", "Traceback", 7)
    agent = AgentEnd("node0", 1, 0, 3, "stopped", ranks=(by_hand.ended(1, 0), by_hand.ended(2, 1)))
    info = RunInfo("r", ("nandiag", "run", "train.py"), "2026-01-02T03:04:05+00:00", world_size=3, nnodes=1)
    record = by_hand.run(
        by_hand.rank(0, steps=7, world=3), by_hand.rank(1, by_hand.loss(5), stop, world=3),
        by_hand.rank(2, lost, world=3), agents=(agent,), info=info,
    )  # fmt: skip
    report = analyse(record)
    assert states(report) == {"0": "victim", "1": "stopped", "2": "victim"}
    (told,) = [one.text for one in report.findings if one.slug == "rank_victim"]
    assert told == "Ranks 0 and 2 ended because nandiag stopped another rank."
    assert not any("no end was written" in note for note in report.notes)


def test_a_rank_that_failed_by_itself_before_a_stop_stays_the_failure(by_hand):
    stop = Stopping(5, "auto", "stop", "NaN loss")
    agent = AgentEnd("node0", 1, 0, 3, "stopped", ranks=(by_hand.ended(1, 0), by_hand.ended(0, 1)))
    record = by_hand.run(
        by_hand.rank(0, Raised("ValueError", "bad shape", "Traceback", 5)),
        by_hand.rank(1, by_hand.loss(5), stop), agents=(agent,),
    )  # fmt: skip
    assert states(analyse(record)) == {"0": "raised", "1": "stopped"}


def test_a_rank_without_a_file_is_not_attached_and_never_silently_clean(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.finished(9), world=3), world=3)
    report = analyse(record)
    assert states(report) == {"0": "finished", "1": "not_attached", "2": "not_attached"}
    assert report.ranks["1"].attached is False
    assert any(note.startswith("Ranks 1-2 of 3 left no word") for note in report.notes)
    assert report.verdict.summary == "no anomaly in 1 rank, 9 steps"


def test_no_rank_at_all_is_told(by_hand):
    report = analyse(by_hand.run(world=2))
    assert report.verdict.summary == "nothing was watched: no rank was attached"


def test_where_no_rank_trained_it_is_told_how_to_have_it_watched(by_hand):
    told = analyse(by_hand.run(ends=[by_hand.ended(0, 0)], world=1)).verdict.suggestions
    assert told[0].code == "nandiag run --level op"
    assert "without an optimizer and a backward call" in told[0].text


def test_that_torch_could_not_be_watched_is_told_with_the_reason(by_hand):
    dark = ProbeDark("arm", "AttributeError: no such hook (arm.py:80)")
    report = analyse(by_hand.run(by_hand.rank(0, dark, by_hand.finished(0), world=1), world=1))
    assert report.verdict.summary == (
        "nothing was watched on rank 0: nandiag could not watch torch there (AttributeError: no such hook (arm.py:80))"
    )


def test_the_newest_attempt_gives_the_state(by_hand):
    record = by_hand.run(
        by_hand.rank(0, Raised("E", "x", "t", 3), world=1), by_hand.rank(0, by_hand.finished(9), world=1, attempt=1),
        ends=[by_hand.ended(0, 0)], world=1,
    )  # fmt: skip
    report = analyse(record)
    assert (report.ranks["0"].state, report.ranks["0"].attempt) == ("finished", 1)
    assert any("started 2 times" in note for note in report.notes)


LONG = "the norm of the gradients is non-finite, so it cannot be clipped " * 5


def test_what_several_ranks_raised_is_told_once_and_a_cut_shows(by_hand):
    ranks = [by_hand.rank(n, Raised("RuntimeError", LONG, "Traceback", 13 + n), steps=14 + n) for n in (0, 1)]
    report = analyse(by_hand.run(*ranks, ends=[by_hand.ended(0, 1), by_hand.ended(1, 1)]))
    (failed,) = [one for one in report.findings if one.slug == "rank_raised"]
    assert failed.ranks == (0, 1)
    assert failed.text.startswith("Ranks 0-1 raised RuntimeError: the norm")
    assert failed.text.endswith(" the..., before the updates of steps 13 to 14.")
    assert report.verdict.summary.startswith("ranks 0-1 raised RuntimeError")


def test_the_full_stop_of_a_message_does_not_stand_before_a_comma(by_hand):
    raised = Raised("RuntimeError", "nan values in its 0th output.", "Traceback", 5)
    record = by_hand.run(by_hand.rank(0, raised, world=1), world=1, ends=[by_hand.ended(0, 1)])
    assert "0th output, before" in analyse(record).verdict.summary


def test_two_killed_ranks_were_killed(by_hand):
    ranks = [by_hand.rank(n, steps=5) for n in (0, 1)]
    record = by_hand.run(*ranks, ends=[by_hand.ended(0, signal=9), by_hand.ended(1, signal=9)])
    assert "Ranks 0-1 were killed by signal 9" in analyse(record).findings[0].text


def test_a_file_of_a_rank_beyond_the_world_is_left_out():
    def log(rank, told):
        return RankLog(rank, 0, 1, (Record(0, 1.0, Attached(told, 2, 0, 0, "n", 1, "site", "3", "0")),))

    report = analyse(RunRecord(None, (log(0, 0), log(1, 1), log(99_999, 0)), ()))
    assert list(report.ranks) == ["0", "1"]
    assert "Rank 99999: not of this run of 2 ranks, left out." in report.notes


def test_a_script_that_trains_nothing_is_told_how_it_is_watched(by_hand):
    ends = [by_hand.ended(0)]
    record = by_hand.run(by_hand.rank(0, by_hand.finished(0), world=1), ends=ends, world=1)
    told, apart = analyse(record).verdict.suggestions
    assert told.code == "nandiag run --level op"
    assert "form no process group" in apart.text
    asked = replace(record, info=replace(record.info, command=("nandiag", "run", "--level=op", "score.py")))
    assert analyse(asked).verdict.suggestions == ()
    trained = by_hand.run(by_hand.rank(0, by_hand.finished(9), world=1), ends=ends, world=1)
    assert analyse(trained).verdict.suggestions == ()
