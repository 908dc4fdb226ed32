"""What a step writes to files that are open already is written once, and read on where it stood."""

import csv
import gzip
import io
import logging
import os
import tempfile
from pathlib import Path

import pytest

from tests.faults.acting import looked, train
from tests.unit.runtime.belongings.written import lines


def by_text(file):
    return lambda: file.write("line\n")


def by_print(file):
    return lambda: print("line", file=file, flush=True)


def by_csv(file):
    writer = csv.writer(file, lineterminator="\n")  # it keeps the method of the file
    return lambda: writer.writerow(["line"])


def by_bytes(file):
    return lambda: file.buffer.write(b"line\n")


def by_number(file):
    return lambda: os.write(file.fileno(), b"line\n")


def by_handler(file):
    handler = logging.StreamHandler(file)
    return lambda: handler.emit(logging.makeLogRecord({"msg": "line"}))


def by_a_kept_method(file):
    write = file.write
    return lambda: write("line\n")


@pytest.mark.parametrize("writer", [by_text, by_print, by_csv, by_bytes, by_number, by_handler, by_a_kept_method])
def test_a_file_that_is_open_is_written_once(writer, work, here):
    worker = work()
    with Path("log").open("w", encoding="utf-8", newline="") as file:
        steps = train(writer(file))
    assert looked(worker)[0] == "found"
    assert lines("log") == ["line"] * steps


def test_a_file_that_lies_in_memory_until_it_is_large_stays_there(work, here):
    worker = work()
    with tempfile.SpooledTemporaryFile(mode="w+", encoding="utf-8") as file:
        steps = train(lambda: file.write("line\n"))
        assert not file._rolled
        file.seek(0)
        assert file.read().splitlines() == ["line"] * steps
    assert looked(worker)[0] == "found"


def test_a_compressed_file_is_written_once(work, here):
    worker = work()
    with gzip.open("log", "wt", encoding="utf-8") as file:
        steps = train(by_text(file))
    assert looked(worker)[0] == "found"
    with gzip.open("log", "rt", encoding="utf-8") as file:
        assert len(file.readlines()) == steps


@pytest.mark.parametrize("kind", [io.StringIO, io.BytesIO])
def test_a_file_in_memory_is_written_once(kind, work):
    worker, file = work(), kind()
    word = "line\n" if kind is io.StringIO else b"line\n"
    write = file.write
    steps = train(lambda: write(word))
    assert looked(worker)[0] == "found"
    assert file.getvalue() == word * steps
    assert file.tell() == len(word) * steps


def test_what_the_step_reads_stands_where_it_stood(work, here):
    Path("rows").write_text("".join(f"row {one}\n" for one in range(9)), encoding="utf-8")
    seen = io.StringIO()
    numbers = iter(range(9))
    worker = work()
    with Path("rows").open(encoding="utf-8") as file:
        steps = train(lambda: seen.write(f"{file.readline()[4]} {next(numbers)},"))
        assert looked(worker)[0] == "found"
        assert file.readline() == f"row {steps}\n"
    assert seen.getvalue() == "0 0,1 1,2 2,3 3,"
    assert next(numbers) == steps


def test_rows_that_the_step_takes_come_once(work, here):
    Path("rows").write_text("".join(f"{one}\n" for one in range(5000)), encoding="utf-8")
    seen = []
    worker = work()
    with Path("rows").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        steps = train(lambda: seen.append(next(rows)[0]))
        assert looked(worker)[0] == "found"
        assert next(rows) == [str(steps)]
    assert seen == ["0", "1", "2", "3"]
