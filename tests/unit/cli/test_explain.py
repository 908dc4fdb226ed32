"""Every slug that a report can print has a text: what it is, how it looks, how to fix it, where to read on."""

import ast
from pathlib import Path

import pytest

import nandiag.analysis
from nandiag.analysis.early.texts import TEXTS
from nandiag.analysis.explained import catalogue, findings
from nandiag.analysis.nccl.catalogue import ENTRIES
from nandiag.cli import explain
from nandiag.errors import UsageError

ROOM = Path(nandiag.analysis.__file__).parent
# Slugs that are put together from a word of an event.
MADE = {
    "nonfinite_{}": ("loss", "gradient", "parameter", "optimizer_state", "buffer", "frozen"),
    "rank_{}": ("killed", "raised", "exited", "not_attached"),
}


def printed():
    """The slugs of every ``Cause(...)`` and ``Finding(...)`` in the analysis."""
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in {"Cause", "Finding"}:
                named = [word.value for word in node.keywords if word.arg == "slug"]
                yield from slugs_in((named or node.args)[0])


def slugs_in(node):
    if isinstance(node, ast.IfExp):
        yield from slugs_in(node.body)
        yield from slugs_in(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        pattern = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        yield from (pattern.format(word) for word in MADE[pattern])
    elif isinstance(node, ast.Constant):
        yield node.value


SLUGS = sorted({*printed(), *TEXTS, *(entry.slug for entry in ENTRIES)})


def test_slugs_are_found():
    assert len(SLUGS) > 40
    assert {"overflow", "nonfinite_buffer", "script_skip", "went_on"} <= set(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_slug_that_can_be_printed_has_a_text(slug):
    assert slug in catalogue(), f"give the module that prints it an EXPLAIN for {slug}"


@pytest.mark.parametrize("slug", sorted(catalogue()))
def test_a_text_is_whole(slug):
    one = catalogue()[slug]
    assert one.kind in {"cause", "finding", "warning"}
    assert len(one.what) > 40
    assert one.what.endswith(".")
    assert one.fix or one.kind == "finding"
    assert one.pages or one.kind == "finding"
    assert all(suggestion.text.endswith((".", ")", ":")) for suggestion in one.fix)


# No run on this project's machines shows them: their words are held by unit tests alone.
NO_GOLDEN_REPORT = {"received_nonfinite", "hardware_corruption"}
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def reports():
    """Every golden report, as one text without line breaks."""
    return [" ".join(path.read_text(encoding="utf-8").split()) for path in sorted(GOLDEN.glob("*/expected.txt"))]


@pytest.mark.parametrize("slug", sorted(slug for slug, one in catalogue().items() if one.kind == "cause"))
def test_a_cause_shows_lines_of_a_real_report(slug, reports):
    lines = [" ".join(line.split()) for line in catalogue()[slug].looks]
    assert lines or slug in NO_GOLDEN_REPORT
    assert any(all(line in report for line in lines) for report in reports)


@pytest.mark.parametrize("one", [one for one in findings.EXPLAIN if one.looks], ids=lambda one: one.slug)
def test_a_finding_shows_lines_of_a_real_report(one, reports):
    lines = [" ".join(line.split()) for line in one.looks]
    assert any(all(line in report for line in lines) for report in reports)


@pytest.mark.parametrize(
    ("slug", "words"),
    [
        ("lr_divergence", ["range test", "warm up"]),
        ("data_outlier", ["z-score", "Normalise"]),
        ("loss_scale_collapse", ["init_scale", "growth_interval", "bfloat16"]),
        ("overflow", ["enabled=False", "bfloat16", "https://docs.pytorch.org/docs/stable/amp.html"]),
    ],
)
def test_what_an_expert_would_say_is_said(slug, words):
    text = "\n".join(explain.text_of(catalogue()[slug]))
    assert [word for word in words if word not in text] == []


def test_the_list_names_every_slug(capsys):
    explain.explain(slug=None)
    text = capsys.readouterr().out
    assert all(f"  {slug} " in text for slug in catalogue())
    assert max(map(len, text.splitlines())) <= 100


def test_one_slug_is_found_as_it_stands_in_a_report(capsys):
    explain.explain(slug="[log-of-zero]")
    assert capsys.readouterr().out.startswith("log_of_zero\n")


@pytest.mark.parametrize(
    ("word", "near"), [("lr_divergance", "lr_divergence"), ("masked", "attention_fully_masked"), ("zzz", None)]
)
def test_a_wrong_slug_is_answered_with_the_nearest(word, near):
    with pytest.raises(UsageError) as caught:
        explain.explain(slug=word)
    text = " ".join(caught.value.sentences())
    assert caught.value.exit_code == 2
    assert (f"Did you mean {near}?" in text) if near else "Did you mean" not in text
