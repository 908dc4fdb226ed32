"""What a step writes to a file by its number is written once."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from tests.faults.acting import BAD, looked, train


def by_a_name_of_its_own(number):
    write = os.write
    return lambda: write(number, b"line\n")


def by_place(number):
    return lambda: os.pwrite(number, b"line\n", os.fstat(number).st_size)


def by_pieces(number):
    return lambda: os.writev(number, [b"li", b"ne\n"])


def by_pieces_at_a_place(number):
    return lambda: os.pwritev(number, [b"li", b"ne\n"], os.fstat(number).st_size)


def by_length(number):
    return lambda: os.ftruncate(number, os.fstat(number).st_size + 5)


def by_reading(number):
    Path("rows").write_bytes(b"line\n" * 9)
    rows = os.open("rows", os.O_RDONLY)

    def act():
        row = os.read(rows, 5)
        os.pwrite(number, row, os.lseek(rows, 0, os.SEEK_CUR) - 5)

    return act


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    "writer", [by_a_name_of_its_own, by_place, by_pieces, by_pieces_at_a_place, by_length, by_reading]
)
def test_a_file_that_is_open_by_its_number_is_written_once(writer, ends, work, here):
    worker = work(on_anomaly="stop" if ends else "continue")
    number = os.open("log", os.O_RDWR | os.O_CREAT)
    with contextlib.suppress(SystemExit):
        train(writer(number))
    assert looked(worker)[0] == "found"
    assert os.fstat(number).st_size == 5 * (BAD + 1 if ends else 4)
    os.close(number)


def test_an_array_is_dumped_once_where_the_run_ends(work, here):
    worker = work(on_anomaly="stop")
    with Path("log").open("wb") as file:
        with pytest.raises(SystemExit):
            train(lambda: np.ones(1).tofile(file))
        assert looked(worker)[0] == "found"
    assert Path("log").stat().st_size == 8 * (BAD + 1)
