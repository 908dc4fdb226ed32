"""Files that another thread or process writes to meanwhile lose nothing."""

import io
import subprocess
import threading
from pathlib import Path

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.files import OpenFiles
from tests.unit.runtime.belongings.written import SECONDS, lines


def test_another_thread_writes_on_and_nothing_of_its_is_lost(here):
    with Path("log").open("w", encoding="utf-8") as file:
        go, done = threading.Event(), threading.Event()

        def other():
            go.wait(SECONDS)
            file.write("theirs\n")
            done.set()

        thread = threading.Thread(target=other)
        thread.start()
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        go.set()
        done.wait(SECONDS)
        files.close()
        file.write("after\n")
        thread.join(SECONDS)
    assert lines("log") == ["before", "theirs", "after"]


def test_what_another_process_writes_to_the_same_file_meanwhile_is_not_written_over(here):
    with Path("log").open("w", encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        subprocess.run(["echo", "theirs"], stdout=file.fileno(), check=True)
        file.flush()
        files.close()
        file.write("after\n")
    assert lines("log") == ["before", "theirs", "after"]


def test_a_file_that_is_only_written_to_and_sought_stands_where_it_stood(here):
    with Path("log").open("w", encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.seek(0)
        file.write("swallowed\n")
        files.close()
        file.write("after\n")
    assert lines("log") == ["before", "after"]


def test_a_full_disk_loses_nothing_that_waits_in_a_buffer(here):
    class Full(io.FileIO):
        full = True

        def write(self, data):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(data)

    raw = Full("log", "w")
    with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        files.close()
        Full.full = False
    assert lines("log") == ["before"]


def test_nothing_of_ours_stays_on_a_file(here):
    with Path("log").open("w", encoding="utf-8") as file:
        before = [dict(vars(one)) for one in (file, file.buffer, file.buffer.raw)]
        files = OpenFiles(Bystanders())
        files.begin()
        files.close()
        assert [dict(vars(one)) for one in (file, file.buffer, file.buffer.raw)] == before
    assert open is io.open
