"""Where each loss was passed over to the end of the run it trained no more: that is harm, told with its place."""

import math
from dataclasses import replace

from nandiag.analysis import analyse
from nandiag.events import Finished, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from tests.unit.analysis.conftest import ended, found, loss, rank, run


def skips(step=4, *, many=MANY_IN_A_ROW, look=True, every=True, of="loss", source="op"):
    made = found(step, source=source, phase="forward") if look else None
    first = Skipped(step, None, 8, 8, math.nan, by="script", look=made, of=of)
    return first, replace(first, in_a_row=many - 8, total=many, look=None, last=True, every=every)


def of(*events, more=()):
    logs = [rank(0, *events, steps=9, world=1 + len(more)), *(rank(at, *those, steps=9) for at, those in more)]
    ends = [ended(number, 0) for number in range(len(logs))]
    return analyse(run(*logs, ends=ends, world=len(logs)))


def test_it_is_an_anomaly_with_the_place_of_the_first():
    report = of(*skips())
    assert (report.verdict.anomaly, report.verdict.cause, report.left_out) == (True, "log_of_zero", None)
    origin = report.verdict.origin
    assert (origin.ranks, origin.step, origin.op, origin.line) == ((0,), 4, "aten.log.default", 12)
    told = {one.slug: one.text for one in report.findings}
    assert told["script_skip"].endswith("From step 4 on no update was made any more.")
    assert {"nonfinite_loss", "went_on"} <= set(told)


def test_where_no_optimizer_steps_at_all_none_was_left_out():
    """A script that writes its weights by hand hands no loss to an optimizer."""
    made = found(0, source="op", phase="init")
    made = replace(made, micro_step=25, site=replace(made.site, module=None, module_class=None))
    harm = replace(loss(0), micro_step=44)
    report = of(replace(skips(0)[0], look=made), skips(0)[1], harm, Finished(0, bad_losses=(1, 0, 0)))
    told = {one.slug: one.text for one in report.findings}
    assert told["script_skip"] == f"No optimizer made a step in this run. {MANY_IN_A_ROW} losses were NaN on rank 0."
    assert told["went_on"] == (
        "Weights are looked at where an optimizer steps, and none did, and so the run was not stopped."
    )
    assert "skipped before" not in report.verdict.summary
    assert report.verdict.summary.endswith("before the model's call")


def test_without_a_place_it_is_told_with_its_step():
    report = of(*skips(look=False))
    assert (report.verdict.anomaly, report.verdict.origin.step, report.verdict.origin.line) == (True, 4, None)


def test_so_are_gradients():
    told = {one.slug for one in of(*skips(of="gradient norm")).findings}
    assert "nonfinite_gradient" in told


def test_the_place_of_an_earlier_one_is_not_told_for_it():
    earlier = skips(2)[0]
    report = of(earlier, *skips(look=False))
    assert (report.verdict.origin.step, report.verdict.origin.line) == (4, None)


def test_of_ranks_the_one_that_made_it_is_named():
    received = skips(source="received")
    bare = replace(received[0].look, site=None, inputs=(), outputs=())
    report = of(replace(received[0], look=bare), received[1], more=[(1, skips())])
    assert (report.verdict.anomaly, report.verdict.origin.ranks) == (True, (1,))


def test_few_or_some_beside_good_ones_are_left_out_alone():
    for events in (skips(many=MANY_IN_A_ROW - 1), skips(every=False)):
        report = of(*events)
        assert (report.verdict.anomaly, report.left_out is not None) == (False, True)
