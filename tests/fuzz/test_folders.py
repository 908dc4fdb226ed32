"""Whatever a run folder holds: never a traceback, never a wait, never unbounded memory, always what can be known."""

import json
import random
import re
import resource
import shutil
import time
import unicodedata
from pathlib import Path

import pytest

from nandiag.analysis import Report
from nandiag.cli.report import read
from nandiag.errors import NothingToReadError
from nandiag.events.forms import build
from nandiag.render import markdown, terminal
from nandiag.render.json import dumps
from tests.fuzz import damage

hypothesis = pytest.importorskip("hypothesis")

RECORDED = damage.runs()
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def show(folder):
    """Read the folder as `nandiag report` does, and show the report in every form; None where there is none."""
    try:
        report = read([folder])
    except NothingToReadError:
        return None
    text = dumps(report)
    assert dumps(build(Report, json.loads(text))) == text
    told = "\n".join(line.plain for line in terminal.lines(report, terminal.Place(str(folder)), 80))
    marked = markdown.dumps(report)
    for shown in (told, marked):
        assert not [char for char in shown if char != "\n" and unicodedata.category(char) in UNSEEN]
    assert "<script" not in outside_code(marked)
    assert not re.search(r"(?<!\\)\]\(", outside_code(marked))
    return report


def outside_code(text):
    """Markdown without its fenced blocks, where nothing is read as markup."""
    kept, fence = [], None
    for line in text.split("\n"):
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if fence is None and len(ticks) >= 3:
            fence = ticks
        elif fence is not None and line == fence:
            fence = None
        elif fence is None:
            kept.append(line)
    return "\n".join(kept)


def damaged(seed, where):
    dice = random.Random(seed)  # noqa: S311 - chance, not secrecy
    run = damage.Folder(dice.choice(sorted(RECORDED)), RECORDED, dice)
    ways = [dice.choice(damage.WAYS) for _ in range(dice.choice([1, 1, 2, 4]))]
    for way in ways:
        way(run)
    run.write(where)
    return run, [way.__name__ for way in ways]


def check(seed, where):
    run, ways = damaged(seed, where)
    began = time.process_time()
    try:
        report = show(where)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {', '.join(ways)}") from error
    assert time.process_time() - began < 20, (seed, ways)
    for rank in run.whole_ranks():
        assert report is not None, (seed, ways)
        assert report.ranks[str(rank)].attached, (seed, ways, rank)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("folders")


def in_turn(place, seed):
    where = Path(place) / str(seed)
    where.mkdir()
    try:
        check(seed, where)
    finally:
        shutil.rmtree(where)


@hypothesis.given(seed=hypothesis.strategies.integers(0, 2**32))
@hypothesis.settings(
    max_examples=60, deadline=None, database=None, derandomize=True, phases=(hypothesis.Phase.generate,)
)
def test_a_damaged_folder_gives_a_report(place, seed):
    in_turn(place, seed)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_damaged_folders_in_one_process(place):
    for seed in range(500):
        in_turn(place, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(500, 10_500):
        in_turn(place, seed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@hypothesis.given(line=hypothesis.strategies.binary(max_size=300), at=hypothesis.strategies.integers(0, 10**6))
@hypothesis.settings(
    max_examples=150, deadline=None, database=None, derandomize=True, phases=(hypothesis.Phase.generate,)
)
def test_any_bytes_among_the_lines_leave_the_others_as_they_are(tmp_path_factory, line, at):
    folder = tmp_path_factory.mktemp("bytes")
    recorded = RECORDED["division_by_zero"]
    for name, content in recorded.items():
        lines = content.splitlines(keepends=True)
        if name.endswith(".jsonl"):
            lines.insert(1 + at % len(lines), line.replace(b"\n", b" ") + b"\n")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"".join(lines))
    report = show(folder)
    assert report.verdict.cause == "division_by_zero"
    assert all(state.attached for state in report.ranks.values())
    shutil.rmtree(folder)
