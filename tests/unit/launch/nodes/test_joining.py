"""Launchers of one job find one folder; those of another, or of an earlier run, do not."""

import os
import socket
from datetime import datetime, timezone

import pytest

from nandiag.launch.arguments import read
from nandiag.launch.nodes import joining, presence
from nandiag.launch.nodes.joining import Job, enter, job_of, way
from nandiag.launch.plan import run_id
from nandiag.settings import Settings
from nandiag.store import layout
from nandiag.store.run import AgentEnd
from nandiag.store.writer import write_whole

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
JOB = Job("key", 2)
NODES = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Enter as the launcher of one node: ``node("a")``; returns the folder and whether it was another's."""
    own = presence.name()

    def node(name, job=JOB, base=tmp_path):
        monkeypatch.setattr(presence, "name", lambda: name)
        made = enter(base, job, lambda: layout.create(base, "train.py", NOW))
        monkeypatch.setattr(presence, "name", lambda: own)
        return made

    return node


def runs(base):
    return sorted(path.name for path in base.iterdir() if path.name != joining.MARKS)


def test_the_second_launcher_joins_the_first(node, tmp_path):
    first, second = node("a"), node("b")
    assert (first[1], second[1]) == (False, True)
    assert first[0] == second[0]
    assert presence.registered(first[0]) == ("a", "b")
    assert len(runs(tmp_path)) == 1


def test_a_run_that_is_full_is_not_joined(node):
    first = node("a")[0]
    node("b")
    third, fourth = node("c"), node("d")
    assert third[0] != first
    assert third[0] == fourth[0]


def test_launchers_without_a_shared_disk_have_their_own(node, tmp_path):
    for base in ("x", "y"):
        assert node(base, base=tmp_path / base)[1] is False


@pytest.mark.parametrize("end", ["ended", "reported", "silent", "removed", "process gone"])
def test_a_run_that_is_over_is_not_joined(node, end):
    first = node("a")[0]
    start = first.agent_start("a")
    if end == "ended":
        write_whole(first.agent_end("a"), AgentEnd("a", 1, 0, 1, "failed"))
    elif end == "reported":
        first.report_file.write_text("{}")
    elif end == "silent":
        old = start.stat().st_mtime - presence.SILENT_SECONDS - 1
        os.utime(start, (old, old))
    elif end == "removed":
        first.path.rename(first.path.with_name("elsewhere"))
    else:
        gone = f'{{"host": "{socket.gethostname()}", "pid": {2**22 + 1}}}'
        start.write_text(gone)
    assert node("b")[1] is False


def test_the_place_of_a_launcher_that_is_gone_is_free(node):
    first = node("a")[0]
    node("b")
    os.utime(first.agent_start("b"), (1, 1))
    assert node("c") == (first, True)


def test_who_comes_second_by_a_hair_joins_and_leaves_nothing_behind(node, tmp_path, monkeypatch):
    # Both have seen no mark; the other makes its own while this one makes its folder.
    real, others = joining._mark, []

    def slow(*given):
        if not others:
            monkeypatch.setattr(joining, "_mark", real)
            name = presence.name()
            others.append(node("fast")[0])
            monkeypatch.setattr(presence, "name", lambda: name)
        return real(*given)

    monkeypatch.setattr(joining, "_mark", slow)
    assert node("late") == (others[0], True)
    assert runs(tmp_path) == [others[0].path.name]


def test_where_no_mark_can_be_made_each_has_its_own(node, tmp_path):
    tmp_path.joinpath(joining.MARKS).write_text("a file in the way")
    assert [node(name)[1] for name in "ab"] == [False, False]
    assert len(runs(tmp_path)) == 2


def test_a_mark_leads_nowhere_but_into_its_own_base(node, tmp_path):
    node("a")
    (mark,) = (tmp_path / joining.MARKS).iterdir()
    mark.write_text("/etc\n")
    assert node("b")[1] is False


def test_old_marks_are_removed(node, tmp_path):
    for _ in range(6):
        folder = node("a")[0]
        folder.report_file.write_text("{}")
    assert sorted(path.name for path in (tmp_path / joining.MARKS).iterdir()) == ["key.5", "key.6"]


def job(words):
    arguments = read(words.split(), Settings())
    return job_of(arguments, run_id(arguments, {}))


@pytest.mark.parametrize("words", ["t.py", "--standalone t.py", "--nnodes 1:1 t.py", "--launcher none python t.py"])
def test_one_node_is_no_job_of_several(words):
    assert job(words) is None


def test_a_job_is_told_by_all_that_its_nodes_share():
    assert job(f"{NODES} t.py").nodes == 2
    assert job("--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint h:1 t.py").nodes == 4
    same = job(f"{NODES} --rdzv-id 7 t.py --lr 1")
    assert same == job(f"{NODES} --rdzv-id 7 t.py")
    others = [
        f"{NODES} --rdzv-id 8 t.py",
        f"{NODES} --rdzv-id 7 u.py",
        f"{NODES.replace('h:1', 'h:2')} --rdzv-id 7 t.py",
    ]
    assert same not in [job(words) for words in others]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "Node7.cluster.local", "node7"])
def test_a_host_is_spelled_alike_on_every_node(host, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.cluster.local")
    assert way(read([*NODES.replace("h:1", f"{host}:5").split(), "t.py"], Settings())) == "node7:5"


def test_addresses_are_kept_whole():
    assert way(read([*NODES.replace("h:1", "10.0.0.7:5").split(), "t.py"], Settings())) == "10.0.0.7:5"
    assert way(read("--nnodes 2 --master-addr h --master-port 6 t.py".split(), Settings())) == "h:6"
