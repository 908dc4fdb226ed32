"""Who takes part, who lives, who speaks for all."""

import os
import socket
import time

import pytest

from nandiag.launch.nodes import presence
from nandiag.store.layout import RunFolder
from nandiag.store.run import AgentEnd, AgentStart
from nandiag.store.writer import write_whole


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path)
    made.make()
    return made


def start(folder, name, host="far", pid=1, age=0.0):
    path = folder.agent_start(name)
    write_whole(path, AgentStart(host, pid))
    when = path.stat().st_mtime - age
    os.utime(path, (when, when))


def end(folder, name):
    write_whole(folder.agent_end(name), AgentEnd("far", 1, 0, 0, "succeeded"))


def test_a_launcher_lives_until_it_ends_falls_silent_or_is_gone(folder):
    here = socket.gethostname()
    start(folder, "far")
    start(folder, "silent", age=presence.SILENT_SECONDS + 1)
    start(folder, "ended")
    start(folder, "own", here, os.getpid())
    start(folder, "gone", here, 2**22 + 1)
    end(folder, "ended")
    now = presence.file_time(folder)
    assert [name for name in presence.registered(folder) if presence.lives(folder, name, now)] == ["far", "own"]
    assert not presence.lives(folder, "never seen", now)


def test_the_first_node_that_is_not_lost_speaks(folder):
    start(folder, "a", age=60)
    start(folder, "b")
    start(folder, "c")
    assert presence.speaker(folder, ("a", "b", "c")) == "b"
    end(folder, "a")
    assert presence.speaker(folder, ("a", "b", "c")) == "a"
    assert presence.speaker(folder, ()) == presence.name()


def test_the_wait_ends_with_the_time_and_marks_who_is_gone(folder):
    presence.register(folder)
    start(folder, "living")
    start(folder, "lost", age=60)
    start(folder, "ended", age=60)
    end(folder, "ended")
    assert not presence.all_live(folder)
    began = time.monotonic()
    presence.wait_for_others(folder, 0.3)
    assert 0.2 < time.monotonic() - began < 10
    assert sorted(path.stem for path in folder.agents.glob("*.lost")) == ["lost"]


def test_nobody_is_waited_for_where_there_is_nobody(folder):
    began = time.monotonic()
    presence.wait_for_others(folder, 30)
    presence.register(folder)
    presence.wait_for_others(folder, 30)
    assert time.monotonic() - began < 10
    assert presence.all_live(folder)


def test_the_file_is_kept_young_while_the_run_goes_on(folder, monkeypatch):
    monkeypatch.setattr(presence, "BEAT_SECONDS", 0.02)
    presence.register(folder)
    path = folder.agent_start(presence.name())
    with presence.beating(folder):
        os.utime(path, (1, 1))
        until = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert path.stat().st_mtime > 2


def test_a_run_of_one_node_has_no_such_file(folder):
    with presence.beating(folder):
        pass
    assert list(folder.agents.iterdir()) == []
