"""A loss that the script left out by itself: no harm, and yet told with its line where that is known."""

import io
import math
from dataclasses import replace

from nandiag.analysis import analyse
from nandiag.events import Skipped
from nandiag.render import markdown, terminal
from tests.unit.analysis.conftest import ended, found, loss, rank, run


def skip(step=4, *, look=True, total=1, of="loss"):
    made = found(step, source="op", phase="forward") if look else None
    return Skipped(step, None, 1, total, math.nan, by="script", look=made, of=of)


def shown(report):
    text = io.StringIO()
    terminal.show(report, terminal.Place("logs/r1"), text)
    return text.getvalue()


def test_it_has_a_verdict_of_its_own_and_the_runs_is_no_anomaly():
    report = analyse(run(rank(0, skip(), skip(6, look=False, total=2), steps=9, world=1), ends=[ended(0, 0)], world=1))
    assert not report.verdict.anomaly
    assert (report.left_out.anomaly, report.left_out.cause) == (False, "log_of_zero")
    origin = report.left_out.origin
    assert (origin.ranks, origin.step, origin.op, origin.line) == ((0,), 4, "aten.log.default", 12)
    text = shown(report)
    assert "no anomaly" in text.splitlines()[0]
    assert "made no step of 2 NaN losses, the first at step 4" in " ".join(text.split())
    assert "warning[log_of_zero]: " in text
    assert "--> train.py:12" in text
    assert "= help: " in text
    assert "nandiag explain log_of_zero" in text


def test_a_search_of_the_scripts_own_scale_is_expected():
    skips = [replace(skip(step, look=False, total=step + 1, of="scaled gradient"), scale=2.0**20) for step in range(2)]
    report = analyse(run(rank(0, *skips, steps=9, world=1), ends=[ended(0, 0)], world=1))
    told = {one.slug: one for one in report.findings}
    assert not report.verdict.anomaly
    assert report.left_out is None
    assert set(told) == {"loss_scale_skip"}
    assert told["loss_scale_skip"].severity == "info"
    assert "left out 2 updates in search of its own loss scale" in told["loss_scale_skip"].text


def test_it_stands_in_markdown_too():
    told = markdown.dumps(analyse(run(rank(0, skip(), steps=9, world=1), ends=[ended(0, 0)], world=1)))
    assert told.splitlines()[2].startswith(":warning:")
    assert "train.py:12" in told
    assert "**Help:**" in told


def test_the_rank_that_made_it_is_named_and_not_all_that_left_the_step_out():
    received = replace(found(4), source="received", site=None, inputs=(), outputs=())
    logs = rank(0, replace(skip(), look=received)), rank(1, skip())
    report = analyse(run(*logs, ends=[ended(0, 0), ended(1, 0)]))
    assert report.left_out.origin.ranks == (1,)


def test_where_no_line_is_known_or_there_is_harm_there_is_no_such_verdict():
    quiet = analyse(run(rank(0, skip(look=False), world=1), ends=[ended(0, 0)], world=1))
    assert quiet.left_out is None
    assert not quiet.verdict.anomaly
    harmed = analyse(run(rank(0, skip(), loss(7), found(7), world=1), ends=[ended(0, 1)], world=1))
    assert (harmed.verdict.origin.step, harmed.left_out) == (7, None)


def test_a_norm_is_told_as_one():
    report = analyse(run(rank(0, skip(of="gradient norm"), world=1), ends=[ended(0, 0)], world=1))
    (text,) = (one.text for one in report.findings if one.slug == "script_skip")
    assert "left out 1 update for a NaN gradient norm" in text
    assert report.left_out.origin is not None


def test_where_nothing_was_updated_any_more_it_says_from_where_on():
    many = replace(skip(7, look=False, total=9, of="gradient norm"), in_a_row=8, last=True)
    logs = rank(0, skip(of="gradient norm"), many, world=1)
    (text,) = (one.text for one in analyse(run(logs, ends=[ended(0, 0)], world=1)).findings)
    assert "left out 9 updates for a NaN gradient norm, the first at step 4, on rank 0." in text
    assert text.endswith("From step 7 on no update was made any more.")


def test_losses_and_norms_are_told_apart_and_what_no_backward_was_called_on_is_no_update():
    mixed = (
        skip(of="unused loss"), skip(6, look=False, total=2, of="unused loss"), skip(7, look=False),
        skip(8, look=False, of="gradient norm"),
    )  # fmt: skip
    report = analyse(run(rank(0, *mixed, world=1), ends=[ended(0, 0)], world=1))
    told = [one.text for one in report.findings if one.slug == "script_skip"]
    assert told == [
        "The script itself made no step of 3 NaN losses, the first at step 4, on rank 0.",
        "The script itself left out 1 update for a NaN gradient norm, the first at step 8, on rank 0.",
    ]
    harmed = analyse(run(rank(0, *mixed[:2], loss(9), found(9), world=1), ends=[ended(0, 1)], world=1))
    assert "skipped before" not in harmed.verdict.summary


def test_a_script_that_skips_by_itself_is_told_and_no_anomaly(by_hand):
    skip = Skipped(4, None, 1, 1, math.nan, by="script")
    report = analyse(by_hand.run(by_hand.rank(0, skip, by_hand.finished(9), world=1), world=1))
    assert not report.verdict.anomaly
    assert [(one.slug, one.severity) for one in report.findings] == [("script_skip", "warning")]
    assert "NaN loss" in report.findings[0].text


def test_many_scripts_skips_are_no_collapse(by_hand):
    skips = [Skipped(4, None, 25, 25, math.nan, by="script")]
    assert not analyse(by_hand.run(by_hand.rank(0, *skips, world=1), world=1)).verdict.anomaly
