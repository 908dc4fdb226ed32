"""How workers ended, from what torchelastic tells, and what follows for the run."""

import argparse
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from nandiag.events import Attached, Finished, Record, Stopping
from nandiag.launch.agent import Ended, of_failures, run
from nandiag.launch.live import Seen
from nandiag.launch.plan import Plan
from nandiag.launch.session import _agent_end
from nandiag.settings import Settings
from nandiag.store.layout import RunFolder
from nandiag.store.run import RankEnd
from nandiag.store.tail import Fresh


@dataclass
class Failed:
    local_rank: int
    exitcode: int
    timestamp: int = 1000
    pid: int = 5


def ends(failures, grace=30.0):
    return [(end.rank, end.exit_code, end.signal, end.stopped_by_launcher) for end in of_failures(failures, grace).ends]


def test_the_first_failure_is_the_cause_and_its_peers_are_victims():
    failures = {5: Failed(1, 1), 4: Failed(0, -15), 6: Failed(2, -6)}
    assert ends(failures) == [(5, 1, None, False), (4, None, 15, True), (6, None, 6, False)]
    assert of_failures(failures, 30).base == 4


def test_a_first_failure_by_sigterm_is_its_own():
    assert ends({0: Failed(0, -15), 1: Failed(1, -15)}) == [(0, None, 15, False), (1, None, 15, True)]


def test_sigkill_at_once_is_not_the_launchers():
    assert ends({0: Failed(0, -9), 1: Failed(1, -9)}) == [(0, None, 9, False), (1, None, 9, False)]
    assert ends({0: Failed(0, -9), 1: Failed(1, -9, timestamp=1031)})[1] == (1, None, 9, True)


def plan(nproc=2, nnodes=1, max_restarts=0):
    return Plan(
        command=("torchrun",),
        added={},
        folder=RunFolder(Path("/nowhere")),
        settings=Settings(),
        script="t.py",
        torchrun=argparse.Namespace(node_rank=3, max_restarts=max_restarts),
        nproc=nproc,
        nnodes=nnodes,
    )


def seen(*events):
    everything = Seen()
    for rank, attempt, event in events:
        everything.take(Fresh(rank, attempt, 100 + rank, Record(0, 1.0, event)))
    return everything


def attached(rank, node=0):
    return Attached(rank, 2, rank, 0, "h", 100 + rank, "site", "3", "0", node_rank=node)


def test_success_is_success_on_all_ranks():
    end = _agent_end(plan(), Ended(), seen((0, 0, attached(0))))
    assert (end.state, end.exit_code, end.attempts) == ("succeeded", 0, 1)
    assert [(one.rank, one.exit_code, one.pid) for one in end.ranks] == [(0, 0, 100), (1, 0, None)]


def test_ranks_that_torchrun_does_not_list_ended_well():
    ended = of_failures({1: Failed(1, 1)}, 30)
    end = _agent_end(plan(), ended, seen())
    assert (end.state, end.exit_code) == ("failed", 1)
    assert [(one.rank, one.exit_code) for one in end.ranks] == [(1, 1), (0, 0)]


def test_ranks_of_a_second_node_are_global():
    end = _agent_end(plan(nnodes=2), of_failures({3: Failed(1, 1)}, 30), seen((2, 0, attached(2, node=1))))
    assert end.node_rank == 1
    assert [(one.rank, one.exit_code) for one in end.ranks] == [(3, 1), (2, 0)]
    end = _agent_end(plan(nnodes=2), Ended(), seen((2, 0, attached(2)), (3, 0, attached(3))))
    assert [one.rank for one in end.ranks] == [2, 3]


def test_a_signal_to_the_launcher_ends_those_that_had_not_finished():
    everything = seen((0, 0, attached(0)), (1, 0, attached(1)), (1, 0, Finished(3)))
    end = _agent_end(plan(), Ended(signal=2), everything)
    assert (end.state, end.exit_code, end.signal) == ("signalled", 130, 2)
    assert [(one.rank, one.signal, one.stopped_by_launcher) for one in end.ranks] == [(0, 2, True)]


@pytest.mark.parametrize("ended", [Ended(), Ended(failed=True), Ended(signal=15)])
def test_a_stop_of_ours_goes_before_everything_else(ended):
    stop = Stopping(1, "stop", "stop", "loss is NaN")
    end = _agent_end(plan(), ended, seen((0, 0, attached(0)), (0, 0, stop)))
    assert (end.state, end.exit_code) == ("stopped", 3)


STOP = Stopping(1, "auto", "stop", "loss is NaN")


def test_a_stop_of_one_rank_goes_before_the_failure_of_the_rank_it_left_alone():
    everything = seen((0, 0, attached(0)), (1, 0, attached(1)), (1, 0, STOP))
    end = _agent_end(plan(), of_failures({0: Failed(0, 1)}, 30), everything)
    assert (end.state, end.exit_code) == ("stopped", 3)
    assert [(one.rank, one.exit_code) for one in end.ranks] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("ended", [Ended(), Ended(failed=True)])
def test_a_stop_in_an_earlier_attempt_is_the_end_of_the_run(ended):
    end = _agent_end(plan(), ended, seen((0, 0, attached(0)), (0, 0, STOP), (0, 1, attached(0))))
    assert (end.state, end.exit_code) == ("stopped", 3)


def test_where_elastic_started_a_stopped_run_anew_no_end_is_made_up():
    # The workers of the second start leave at once, with code 0: that says nothing of how those of the first ended.
    everything = seen((0, 0, attached(0)), (1, 0, attached(1)), (1, 0, STOP))
    end = _agent_end(plan(max_restarts=2), Ended(), everything)
    assert [(one.rank, one.exit_code) for one in end.ranks] == [(1, 0)]


def test_a_worker_that_we_ended_because_of_a_stop_is_no_failure():
    everything = seen((0, 0, attached(0)), (1, 0, attached(1)), (1, 0, STOP))
    everything.ended.add(100)
    end = _agent_end(plan(), of_failures({0: Failed(0, -15, pid=100)}, 30), everything)
    assert [(one.rank, one.signal, one.stopped_by_launcher) for one in end.ranks] == [(0, 15, True), (1, None, False)]


def test_restarts_are_counted():
    assert _agent_end(plan(), Ended(), seen((0, 0, attached(0)), (0, 2, attached(0)))).attempts == 3


def test_exactly_one_of_exit_code_and_signal():
    for end in of_failures({0: Failed(0, 3), 1: Failed(1, -11)}, 30).ends:
        assert (end.exit_code is None) != (end.signal is None)
        assert isinstance(end, RankEnd)


def test_what_torch_refuses_is_a_sentence_and_handlers_stay():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ended = run(argparse.Namespace())
    assert ended.trouble.startswith("torchrun gave up: AttributeError")
    assert "Traceback" in ended.details
    assert before == {number: signal.getsignal(number) for number in before}


def two_nodes(agent):
    both = Seen(agent=agent)
    for rank, name in enumerate(("h-1", "h-2")):
        event = Attached(rank, 2, 0, 0, "h", 100 + rank, "site", "3", "0", node_rank=rank, agent=name)
        both.take(Fresh(rank, 0, 100 + rank, Record(0, 1.0, event)))
    return both


def test_in_a_shared_folder_each_launcher_tells_of_its_own_workers():
    for node, agent in enumerate(("h-1", "h-2")):
        end = _agent_end(plan(nproc=1, nnodes=2), Ended(), two_nodes(agent))
        assert (end.node_rank, [one.rank for one in end.ranks]) == (node, [node])


def test_the_launcher_of_the_first_node_speaks_for_all():
    assert two_nodes("h-1").nodes == ("h-1", "h-2")
    assert [two_nodes(agent).speaks for agent in ("h-1", "h-2", "")] == [True, False, True]
    assert Seen(agent="h-2").speaks
