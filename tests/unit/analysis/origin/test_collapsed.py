"""Loss scales: what is left out in search of one, what a collapse is, and whose updates show that it is none."""

import time
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Finished, History, Skipped


def test_skips_of_a_scaler_are_benign(by_hand):
    skips = [Skipped(0, 65536.0 / 2**n, n + 1, n + 1) for n in range(4)]
    report = analyse(by_hand.run(by_hand.rank(0, *skips, by_hand.finished(20, 4, 19), world=1), world=1))
    assert not report.verdict.anomaly
    assert [(one.slug, one.severity) for one in report.findings] == [("loss_scale_skip", "info")]
    assert "4 steps" in report.findings[0].text


@pytest.mark.parametrize("skip", [Skipped(9, 0.5, 4, 30), Skipped(9, None, 20, 20)])
def test_a_collapse_of_the_scale_is_an_anomaly(by_hand, skip):
    report = analyse(by_hand.run(by_hand.rank(0, Skipped(3, 1024.0, 1, 1), skip, world=1), world=1))
    assert (report.verdict.anomaly, report.verdict.cause) == (True, "loss_scale_collapse")
    assert report.verdict.origin.step == 9
    assert report.findings[0].slug == "loss_scale_collapse"


def test_a_collapse_is_told_with_the_count_that_a_stop_tells(by_hand):
    early = [Skipped(10, 2.0 ** (10 - n), n + 1, n + 1) for n in range(5)]
    row = [Skipped(11, 2.0 ** (5 - n), n + 1, n + 6) for n in range(20)]
    report = analyse(by_hand.run(by_hand.rank(0, *early, *row, world=1), world=1))
    assert report.findings[0].text == (
        "From step 11 on GradScaler left out 20 updates in a row (5 more since step 10) and reached a scale of 6.1e-5: "
        "its scale has collapsed."
    )


@pytest.mark.parametrize("last", [Skipped(2, 0.125, 5, 14), Skipped(2, None, 20, 20)])
def test_a_scale_by_which_updates_are_made_again_has_not_collapsed(by_hand, last):
    past = History((2, 2, 3), (1.0,) * 3, (1.0,) * 3, (0.1,) * 3, scale=(0.125, 0.0625, 0.0625))
    skips = Skipped(0, 2.0, 1, 9), replace(last, total=last.total - 1), last
    report = analyse(by_hand.run(by_hand.rank(0, *skips, past, by_hand.finished(46), world=1), world=1))
    assert not report.verdict.anomaly
    (found,) = report.findings
    assert found.text == (
        f"GradScaler left out {last.total} steps in search of its scale, which is 0.0625 by now: 44 updates were made "
        "behind the last of them."
    )
    assert (found.slug, found.severity) == ("loss_scale_found", "info")


def test_a_scale_by_which_no_update_is_made_any_more_has_collapsed_though_an_earlier_fall_had_ended(by_hand):
    skips = Skipped(2, 0.125, 5, 5), Skipped(30, 0.01, 3, 8)
    report = analyse(by_hand.run(by_hand.rank(0, *skips, by_hand.finished(30), world=1), world=1))
    assert (report.verdict.cause, report.verdict.origin.step) == ("loss_scale_collapse", 30)
    assert report.findings[0].text.startswith("From step 30 on GradScaler left out 3 updates in a row")


def of_two(by_hand, whose, made):
    """A run of two optimizers whose second leaves out each step from 20 on, all but those in ``made``."""
    steps = range(18, 40)
    norms = [one for step in steps for one in (1.0, None if step >= 20 and step not in made else 1.0)]
    rows = [step for step in steps for _ in range(2)]
    past = History(tuple(rows), (1.0,) * 44, tuple(norms), tuple(None if one is None else 0.1 for one in norms),
                   (0.01,) * 44, optimizer=(0, 1) * 22)  # fmt: skip
    skips = [Skipped(20 + n, 2.0 ** (2 - n), 1, 1 + n, optimizer=whose) for n in range(6)]
    return analyse(by_hand.run(by_hand.rank(0, *skips, past, by_hand.finished(40), world=1), world=1))


@pytest.mark.parametrize("whose", [1, None])
def test_updates_of_another_optimizer_do_not_show_that_a_scale_is_found(by_hand, whose):
    report = of_two(by_hand, whose, ())
    assert report.verdict.cause == "loss_scale_collapse"
    assert report.findings[0].text == (
        "By step 25 GradScaler had left out 6 updates, while another optimizer made its own, and reached a scale of "
        "0.125: its scale has collapsed."
    )


def test_updates_of_its_own_do(by_hand):
    report = of_two(by_hand, 1, range(30, 40))
    assert not report.verdict.anomaly
    assert "10 updates were made behind the last of them" in report.findings[0].text


def behind_another(by_hand, finished, *, counted=None):
    """A run whose first optimizer leaves out all from step 5 on; all that is known of since is of the second."""
    past = History(tuple(range(600, 700)), (1.0,) * 100, (1.0,) * 100, (0.1,) * 100, (None,) * 100,
                   optimizer=(1,) * 100)  # fmt: skip
    skips = [Skipped(5, 2.0 ** (2 - n), 1 + n, 1 + n, optimizer=0, updates=counted) for n in range(20)]
    return analyse(by_hand.run(by_hand.rank(0, *skips, past, finished, world=1), world=1))


@pytest.mark.parametrize(("updates", "counted"), [((), None), ((5, 695), 5)])
def test_updates_of_another_are_not_its_own_though_its_own_steps_are_known_no_more(by_hand, updates, counted):
    report = behind_another(by_hand, by_hand.finished(700, 20, 699, updates=updates), counted=counted)
    assert report.verdict.cause == "loss_scale_collapse"


def test_updates_that_were_counted_show_that_a_scale_was_found_long_ago(by_hand):
    report = behind_another(by_hand, by_hand.finished(700, 20, 699, updates=(105, 595)), counted=5)
    assert not report.verdict.anomaly
    assert "100 updates were made behind the last of them" in report.findings[0].text


@pytest.mark.parametrize(("norm", "collapsed"), [(1.0, False), (float("inf"), True), (None, True)])
def test_a_skip_takes_back_the_update_beside_it_only_where_that_is_itself(by_hand, norm, collapsed):
    # All of them have the step of another optimizer that is ahead, and each update is followed by a skip.
    norms = (1.0, *(norm, None) * 4)
    rates = (0.1, *(0.1, None) * 4)
    past = History((9,) * 9, (1.0,) * 9, norms, rates, (None,) * 9, optimizer=(1, *(0,) * 8))
    skips = [Skipped(9, 2.0**-n, 1, n, optimizer=0) for n in range(1, 5)]
    report = analyse(by_hand.run(by_hand.rank(0, *skips, past, by_hand.finished(9), world=1), world=1))
    assert (report.verdict.cause == "loss_scale_collapse") is collapsed


def test_the_skips_of_hundreds_of_ranks_are_not_each_held_against_all(by_hand):
    skips = [Skipped(step, 2.0**-step / 2, step + 1, step + 1) for step in range(60)]
    record = by_hand.run(*(by_hand.rank(n, *skips, by_hand.finished(400), world=256) for n in range(256)), world=256)
    began = time.perf_counter()
    assert analyse(record).findings[0].slug == "loss_scale_found"
    assert time.perf_counter() - began < 10  # 0.2 s; it took 50 where each looked through all the others


@pytest.mark.parametrize(("updates", "harmed", "anomaly"), [(30, False, False), (5, False, True), (30, True, True)])
def test_what_was_looked_at_when_it_fell_is_no_origin_once_the_scale_was_found(by_hand, updates, harmed, anomaly):
    skip = Skipped(5, 0.5, 4, 4, 3e38, optimizer=0, updates=5)
    harm = (by_hand.gradient(5),) if harmed else ()
    ended = Finished(40, 4, 39, updates=(updates,))
    report = analyse(by_hand.run(by_hand.rank(0, skip, *harm, by_hand.found(5), ended, world=1), world=1))
    assert report.verdict.anomaly is anomaly
