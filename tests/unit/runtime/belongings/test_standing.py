"""A file that was read by its lines stands, after a replay, before the very line that it stood before."""

import csv
import io
import random
from pathlib import Path

import pytest

from nandiag.runtime.belongings.world.standing import position

ENDS = {None: ["\n", "\r\n", "\r"], "": ["\n", "\r\n"], "\n": ["\n"], "\r\n": ["\r\n"]}
LETTERS = {"utf-8": "aé漢😀", "latin-1": "aé", "ascii": "ab,"}


@pytest.fixture(params=[(code, ends) for code in LETTERS for ends in ENDS], ids=str)
def lined(request, tmp_path):
    """A file of a few chunks, whose lines end in all ways."""
    code, ends = request.param
    draw = random.Random(1)  # noqa: S311 - no secret
    rows = ["".join(draw.choices(LETTERS[code], k=draw.randrange(9))) + draw.choice(ENDS[ends]) for _ in range(4000)]
    path = Path(tmp_path, "rows")
    path.write_bytes("".join(rows).encode(code))
    return lambda: path.open(encoding=code, newline=ends)


@pytest.mark.parametrize("read", [1, 5, 700, 1503, 2999, 5000])
def test_a_file_goes_on_with_the_same_line(lined, read):
    with lined() as plain, lined() as file:
        for _ in range(read):
            assert next(plain, None) == next(file, None)
        for further in (0, 1, 40, 3000):
            put_back = position(file)
            for _ in range(further):
                next(file, None)
            put_back()
            assert next(plain, None) == next(file, None)
        assert list(plain) == list(file)


@pytest.mark.parametrize("split", [b"\r\n", "é".encode(), "😀".encode()])
@pytest.mark.parametrize("ends", [None, "", "\n"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_character_or_an_end_of_a_line_between_two_chunks(split, ends, at, tmp_path):
    path = Path(tmp_path, "rows")
    path.write_bytes(b"a\n" + b"x" * (io.DEFAULT_BUFFER_SIZE - 2 - at) + split + b"rest\nmore\n")
    with path.open(encoding="utf-8", newline=ends) as plain, path.open(encoding="utf-8", newline=ends) as file:
        assert next(plain) == next(file)
        put_back = position(file)
        next(file)
        put_back()
        assert list(plain) == list(file)


def test_rows_of_a_csv_reader(tmp_path):
    path = Path(tmp_path, "rows")
    path.write_text("".join(f"{one},x\n" for one in range(3000)), encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        put_back = position(file)
        next(reader)
        put_back()
        assert next(reader) == ["1", "x"]


def test_a_file_that_ended_has_ended(tmp_path):
    path = Path(tmp_path, "rows")
    path.write_text("a\nb\n", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        next(file)
        put_back = position(file)
        assert list(file) == ["b\n"]
        put_back()
        assert list(file) == ["b\n"]
        put_back = position(file)
        assert list(file) == []
        put_back()
        assert list(file) == []


def test_nothing_of_ours_stays_on_it(tmp_path):
    path = Path(tmp_path, "rows")
    path.write_text("a\nb\n", encoding="utf-8")
    with path.open(encoding="utf-8") as file:
        next(file)
        position(file)()
        assert (vars(file.buffer), vars(file)) == ({}, {"mode": "r"})
