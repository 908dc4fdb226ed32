"""Dumps of torch's flight recorder, in the structure that torch writes, beside and instead of a rank's own word."""

import json
import pickle

import pytest

from nandiag.events.standing import DONE, ISSUED, CallFact, GroupFact, Standing
from nandiag.store.flight.dumps import flight_of, flights, joined
from nandiag.store.layout import RunFolder
from nandiag.store.reader import read_run


def entry(number, op="all_reduce", *, state="completed", size=(4, 8), line=12, p2p=False):
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/v/lib/python3.12/site-packages/torch/distributed/x.py", "line": 9},
            {"name": "train", "filename": "/home/u/train.py", "line": line},
        ],
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{op}", "time_created_ns": 1,
        "duration_ms": None, "input_sizes": [list(size)], "input_dtypes": ["Float"], "output_sizes": [list(size)],
        "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000, "is_p2p": p2p,
    }  # fmt: skip


def dump(enqueued, completed, entries):
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued, "last_started_collective": enqueued,
                "last_completed_collective": completed,
            }
        },
        "nccl_version": "2.27.3",
        "entries": entries,
    }  # fmt: skip


def test_a_dump_tells_calls_places_and_how_far_each_group_came():
    flight = flight_of(
        dump(3, 2, [entry(1), entry(2), entry(3, "_all_gather_base", state="scheduled"), entry(4, p2p=True)])
    )
    assert [(call.op, call.native, call.state) for call in flight.calls] == [
        ("all_reduce", 1, DONE), ("all_reduce", 2, DONE), ("_all_gather_base", 3, ISSUED),
    ]  # fmt: skip
    assert (flight.calls[0].place.file, flight.calls[0].place.line) == ("/home/u/train.py", 12)
    assert (flight.calls[0].shapes, flight.calls[0].dtype) == (((4, 8),), "float")
    group = flight.groups[0]
    assert (group.name, group.members, group.enqueued, group.completed) == ("0", ((0, 0), (1, 1)), 3, 2)


@pytest.mark.parametrize("damage", [
    {"entries": 3}, {"pg_status": [1]}, {"pg_config": "x"}, {"entries": [1, {}, {"process_group": 3}]},
    {"entries": [{**entry(1), "input_sizes": "x", "frames": {"a": 1}, "input_dtypes": 3}]},
    {"pg_status": {"0": {"last_enqueued_collective": "x"}}},
])  # fmt: skip
def test_what_does_not_fit_is_left_out(damage):
    try:
        flight_of({**dump(1, 1, [entry(1)]), **damage})
    except ValueError:
        assert damage == {"entries": 3}


def test_a_dump_joins_what_the_rank_wrote_itself():
    own = Standing(
        "stalled", 5.0, 9, 2, (GroupFact("0", "default_pg", ((0, 1),), 3, 3),), (CallFact("barrier", "0", 0, "done"),)
    )
    both = joined(own, flight_of(dump(4, 3, [entry(4)])))
    assert (both.why, both.calls, both.groups[0].count) == ("stalled", own.calls, 3)
    assert (both.groups[0].native, both.groups[0].completed, both.native[0].native) == (4, 3, 4)
    alone = joined(None, flight_of(dump(4, 3, [entry(4)])))
    assert (alone.why, alone.groups[0].native) == ("dumped", 4)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.at(tmp_path / "run")
    made.make()
    for rank, (enqueued, completed) in enumerate(((5, 4), (4, 4))):
        head = {"kind": "attached", "seq": 0, "time": 1.0, "rank": rank, "world_size": 2, "local_rank": rank,
                "attempt": 0, "host": "h", "pid": 10 + rank, "how": "site", "python": "3", "nandiag": "0"}  # fmt: skip
        made.rank_file(rank, 0, 10 + rank).write_text(json.dumps(head) + "\n")
        entries = [entry(number, state="completed" if number <= completed else "started", line=10 + number)
                   for number in range(1, enqueued + 1)]  # fmt: skip
        (made.nccl / f"flight_recorder_rank_{rank}").write_bytes(pickle.dumps(dump(enqueued, completed, entries), 2))
    agent = {"host": "h", "pid": 1, "node_rank": 0, "exit_code": 1, "state": "failed", "ranks": [
        {"rank": rank, "signal": 6, "pid": 10 + rank} for rank in (0, 1)]}  # fmt: skip
    (made.agents / "h-1.json").write_text(json.dumps(agent))
    return made


def test_ranks_that_torchs_watchdog_ended_are_compared_by_their_dumps(folder):
    from nandiag.analysis import analyse

    hang = analyse(read_run([folder])).hang
    assert (hang.slug, hang.behind, hang.sequence) == ("collective_missing", (1,), 5)
    assert hang.stands[0].place.line == 15
    assert (
        "By torch's flight recorder, in the default group: rank 0 had enqueued call 5 and completed call 4; "
        "rank 1 had enqueued call 4 and completed call 4." in hang.evidence
    )


def test_a_dump_that_would_run_code_costs_a_note(folder):
    (folder.nccl / "flight_recorder_rank_1").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    record = read_run([folder])
    assert any("flight_recorder_rank_1" in note and "left out" in note for note in record.notes)
    assert flights(folder.nccl, [])[0].groups[0].enqueued == 5
