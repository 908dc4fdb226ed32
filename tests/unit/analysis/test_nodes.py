"""A node that is gone is the failure; the ranks that lost their connection to it are victims, and nobody hung."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Attached, Finished, Raised
from nandiag.store.run import AgentEnd, AgentStart, RunInfo

INFO = RunInfo("r1", ("nandiag",), "2026", nproc=1, nnodes=2, world_size=2)


def of_two_nodes(by_hand, *, lost):
    logs = []
    for number, events in enumerate([(Raised("RuntimeError", "Connection closed by peer", "", 5),), ()]):
        log = by_hand.rank(number, *events, steps=5)
        first = log.records[0]
        assert isinstance(first.event, Attached)
        head = replace(first, event=replace(first.event, agent=f"node{number}-7"))
        logs.append(replace(log, records=(head, *log.records[1:])))
    ends = (AgentEnd("node0", 7, 0, 1, "failed", ranks=(by_hand.ended(0, 1),)),)
    record = by_hand.run(*logs, info=INFO, agents=ends)
    starts = (AgentStart("node0", 7), AgentStart("node1", 7))
    return analyse(replace(record, starts=starts, lost=starts[1:] if lost else ()))


def test_a_rank_whose_launcher_is_gone_is_the_failure(by_hand):
    report = of_two_nodes(by_hand, lost=True)
    assert {rank: state.state for rank, state in report.ranks.items()} == {"0": "victim", "1": "lost"}
    assert report.verdict.summary.startswith("rank 1 was lost with its launcher, last seen at step 4;")
    assert report.verdict.suggestions
    assert {one.slug for one in report.findings} == {"rank_lost", "rank_victim"}
    assert "The launcher on node1 (pid 7) is gone without an end: killed, or its node went down." in report.notes


def test_a_launcher_that_may_still_run_is_not_called_gone(by_hand):
    report = of_two_nodes(by_hand, lost=False)
    assert report.ranks["1"].state == "unfinished"
    assert "1 launcher had not ended when this was read (node1-7)." in report.notes
    assert not any("another launcher" in note for note in report.notes)


@pytest.mark.parametrize(("nnodes", "state"), [(2, "unfinished"), (None, "succeeded")])
def test_only_a_run_that_may_lose_nodes_succeeds_without_one(by_hand, nnodes, state):
    info = replace(INFO, nnodes=nnodes)
    record = by_hand.run(by_hand.rank(0, Finished(5)), info=info, ends=[by_hand.ended(0, 0)])
    assert analyse(replace(record, lost=(AgentStart("node1", 7),))).run.state == state


def test_a_rank_that_lost_one_of_a_launcher_without_a_folder_here_is_its_victim(by_hand):
    """A folder of each node's own: this one knows nothing of the node that was killed."""
    log = by_hand.rank(0, Raised("RuntimeError", "Connection closed by peer", "", 5))
    ends = (AgentEnd("node0", 7, 0, 1, "failed", ranks=(by_hand.ended(0, 1),)),)
    report = analyse(by_hand.run(log, info=INFO, agents=ends))
    assert report.ranks["0"].state == "victim"
    assert (
        report.verdict.summary == "rank 0 lost the connection to rank 1, unheard of here; no anomaly in 1 rank, 5 steps"
    )
    assert [one.slug for one in report.findings] == ["rank_victim"]
    assert any("started by another launcher" in note for note in report.notes)


def test_a_rank_that_fails_by_itself_is_no_victim_of_a_launcher_elsewhere(by_hand):
    log = by_hand.rank(0, Raised("ValueError", "no such file", "", 5))
    ends = (AgentEnd("node0", 7, 0, 1, "failed", ranks=(by_hand.ended(0, 1),)),)
    report = analyse(by_hand.run(log, info=INFO, agents=ends))
    assert report.verdict.summary.startswith("rank 0 raised ValueError: no such file")
