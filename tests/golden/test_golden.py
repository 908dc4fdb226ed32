"""Recorded runs and the reports they must give: ``NAME/run`` holds the files of a run, ``NAME/expected.txt`` the words.

``expected.json`` holds the part of the report that must hold; what it leaves out is free.
"""

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from nandiag.analysis import analyse, causes
from nandiag.analysis.explained.catalogue import explanations_of
from nandiag.render import terminal
from nandiag.render.json import dumps
from nandiag.store.layout import RunFolder
from nandiag.store.reader import read_run

HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/expected.txt"))


def report_of(name):
    return analyse(read_run([RunFolder(HERE / name / "run")]))


@pytest.mark.parametrize("name", CASES)
def test_words(name):
    lines = terminal.lines(report_of(name), terminal.Place("RUN"), 100)
    assert "".join(f"{line.plain}\n" for line in lines) == (HERE / name / "expected.txt").read_text()


@pytest.mark.parametrize("name", CASES)
def test_facts(name):
    expected = json.loads((HERE / name / "expected.json").read_text())
    assert part_of(json.loads(dumps(report_of(name))), expected) == expected


def part_of(found, expected):
    """Return ``found`` reduced to the keys that ``expected`` has."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: part_of(found[key], expected[key]) for key in expected if key in found}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [part_of(one, two) for one, two in zip(found, expected, strict=True)]
    return found


def test_every_cause_heads_a_report():
    modules = [
        importlib.import_module(f"{causes.__name__}.{one.name}") for one in pkgutil.iter_modules(causes.__path__)
    ]
    slugs = {explanation.slug for module in modules for explanation in explanations_of(module)}
    heads = {report_of(name).verdict.cause for name in CASES}
    assert slugs - heads == set()
