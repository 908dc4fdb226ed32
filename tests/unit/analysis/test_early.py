"""Early warnings of the ranks become findings: one of a kind, never an anomaly."""

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.early import SLUGS, line
from nandiag.analysis.early.texts import told
from nandiag.cli.closing import decide
from nandiag.events import Site, Warned

SPIKE = {"norm": 800.0, "largest": 8.0, "median": 2.0, "steps": 128}


def spike(step, total=1, **rest):
    return Warned("grad_norm_spike", step, SPIKE, total=total, **rest)


def findings(by_hand, *logs):
    ends = [by_hand.ended(log.rank, 0) for log in logs]
    report = analyse(by_hand.run(*logs, ends=ends))
    return report, [finding for finding in report.findings if finding.slug in SLUGS]


def test_the_same_warning_of_all_ranks_is_one_finding(by_hand):
    logs = [by_hand.rank(number, spike(40), spike(90, 7), by_hand.finished(100)) for number in (0, 1)]
    report, found = findings(by_hand, *logs)
    assert [(one.severity, one.ranks, one.step) for one in found] == [("warning", (0, 1), 40)]
    assert found[0].text == (
        "Ranks 0-1, step 40: the gradient norm is 800, 100 times the largest of the last 128 steps (median 2) "
        "(7 times in all, the last one written at step 90)."
    )
    assert not report.verdict.anomaly


def test_warnings_on_different_things_are_told_apart(by_hand):
    log = by_hand.rank(0, spike(40, name="a"), spike(41, name="b"), Warned("loss_spike", 9), by_hand.finished(100))
    _, found = findings(by_hand, log, by_hand.rank(1, by_hand.finished(100)))
    assert [(one.slug, one.step) for one in found] == [
        ("loss_spike", 9),
        ("grad_norm_spike", 40),
        ("grad_norm_spike", 41),
    ]


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_every_kind_can_be_told_whatever_was_written(slug):
    for facts in ({}, {"norm": "inf", "lr": "nan", "scale": None, "median": 0.0, "largest": 0}, {"steps": "x"}):
        text = line(3, Warned(slug, 5, facts, None))
        assert text.startswith(f"warning[{slug}]: rank 3, step 5: ")
        assert len(text) > 40


def test_a_kind_of_a_newer_version_is_told_by_its_name(by_hand):
    assert line(0, Warned("moon_phase", 5)) == "warning[moon_phase]: rank 0, step 5: moon phase"


@pytest.mark.parametrize(("fail_on", "code"), [("never", 0), ("anomaly", 0), ("warning", 3)])
def test_only_fail_on_warning_minds_them(by_hand, fail_on, code):
    report, _ = findings(by_hand, by_hand.rank(0, spike(40), by_hand.finished(100), world=1))
    assert decide(0, report, fail_on) == code


@pytest.mark.parametrize(
    ("size", "step", "cause"), [(1807.0, 44, "data_outlier"), (60.0, 44, "overflow"), (1807.0, 42, "overflow")]
)
def test_a_value_far_beyond_all_before_explains_an_exponential_of_the_same_step(by_hand, size, step, cause):
    facts = {"size": size, "largest": 4.2, "batches": 44, "deviations": 50.6, "sample": 9, "samples": 32}
    bad = by_hand.fact(posinf=1)
    site = Site("net", "Net", "aten.exp.default")
    look = by_hand.found(44, outputs=(bad,), inputs=(by_hand.fact(max=956.0, absmax=956.0),), site=site)
    warned = Warned("batch_outlier", step, facts, "x")
    log = by_hand.rank(0, warned, by_hand.loss(44, value=float("inf")), look, by_hand.finished(45), world=1)
    verdict = analyse(by_hand.run(log, world=1)).verdict
    assert (verdict.cause, verdict.mechanism) == (cause, "overflow")
    assert any("holds a value of size" in text for text in verdict.evidence)


CALL = "model(images[rows], mask=m)"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, "x = x.clamp(-8.4, 8.4)"),
        ("data", "data = data.clamp(-8.4, 8.4)"),
        ("batch['x']", "batch['x'] = batch['x'].clamp(-8.4, 8.4)"),
        ("images[rows]", "model(images[rows].clamp(-8.4, 8.4), mask=m)"),
        ("a - b", "(a - b).clamp(-8.4, 8.4)"),
    ],
)
def test_a_batch_is_clipped_by_what_the_script_calls_it(by_hand, given, code):
    facts = {"size": 1807.0, "largest": 4.2, "batches": 44, "deviations": 50.6, "sample": 9, "samples": 32}
    facts |= {} if given is None else {"given": given, "call": CALL}
    look = by_hand.found(44, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=956.0, absmax=956.0),),
                         site=Site("net", "Net", "aten.exp.default"))  # fmt: skip
    warned = Warned("batch_outlier", 44, facts, "x")
    log = by_hand.rank(0, warned, by_hand.loss(44, value=float("inf")), look, by_hand.finished(45), world=1)
    verdict = analyse(by_hand.run(log, world=1)).verdict
    (told,) = [one for one in verdict.suggestions if "clip all of the batch" in one.text]
    assert told.code == code
    assert ("a line of its own" in told.text) is (" = " in code)


@pytest.mark.parametrize(("op", "told_of"), [("aten.exp.default", True), ("aten.sqrt.default", False)])
def test_a_value_that_came_before_and_did_no_harm_is_told_of_an_overflow_alone(by_hand, op, told_of):
    facts = {"size": 1807.0, "largest": 4.2, "batches": 144, "deviations": 50.6, "sample": 9, "samples": 32, "aside": 2}
    given, bad = by_hand.fact(zeros=1, max=956.0, absmax=956.0), by_hand.fact(posinf=1)
    node = None if told_of else "SqrtBackward0"
    look = by_hand.found(144, outputs=(bad,), inputs=(given,), site=Site("net", "Net", op, node, node and op))
    warned = Warned("batch_outlier", 144, facts, "x")
    log = by_hand.rank(0, warned, by_hand.loss(144, value=float("inf")), look, by_hand.finished(145), world=1)
    verdict = analyse(by_hand.run(log, world=1)).verdict
    assert any("holds a value of size" in text for text in verdict.evidence) is told_of
    assert any("clamp(-" in (one.code or "") for one in verdict.suggestions) is told_of


@pytest.mark.parametrize(("step", "times"), [(44, 1), (42, 2)])
def test_a_batch_that_was_named_is_not_told_to_be_looked_at_once_more(by_hand, step, times):
    """The batch that holds the outlier is told already; that of another step is not."""
    facts = {"size": 1807.0, "largest": 4.2, "batches": 44, "deviations": 50.6, "sample": 9, "samples": 32}
    given, bad = by_hand.fact(max=956.0, absmax=956.0), by_hand.fact(posinf=1)
    look = by_hand.found(
        44, phase="loss", outputs=(bad,), inputs=(given,), site=Site(None, None, "aten.exp.default"),
        facts={"of_weights": False},
    )  # fmt: skip
    warned = Warned("batch_outlier", step, facts, "x")
    log = by_hand.rank(0, warned, by_hand.loss(44, value=float("inf")), look, by_hand.finished(45), world=1)
    told = [one.text.removeprefix("Or ").capitalize() for one in analyse(by_hand.run(log, world=1)).verdict.suggestions]
    assert sum(text.startswith("Look at the batch of step") for text in told) == times, told


def test_a_batch_unlike_the_others_is_the_story_behind_an_overflow(by_hand):
    facts = {"size": 3e5, "largest": 4.3, "batches": 147, "deviations": 100.7, "sample": 8, "samples": 16}
    seen = Warned("batch_outlier", 165, {**facts, "dataset": "TensorDataset", "index": 2111}, "input")
    bad = by_hand.fact(posinf=1, shape=(), min=None, max=None, absmax=None)
    look = by_hand.found(167, phase="loss", outputs=(bad,), inputs=(by_hand.fact(max=1e30, absmax=1e30),))
    for warned, cause in ((seen, "data_outlier"), (Warned("batch_outlier", 12), None)):
        log = by_hand.rank(0, warned, by_hand.loss(167, value=float("inf")), look, by_hand.finished(168), world=1)
        verdict = analyse(by_hand.run(log, world=1)).verdict
        assert (verdict.cause == "data_outlier") is (cause == "data_outlier")
        assert any("index 2111 of TensorDataset" in text for text in verdict.evidence) is (cause is not None)


@pytest.mark.parametrize(("others", "clipped"), [(19, False), (3, True)])
def test_a_batch_of_which_each_sample_is_far_out_is_not_clipped(by_hand, others, clipped):
    """It came in other units, or was not normalised: clipped, nothing would be left of any."""
    facts = {"size": 1345.0, "largest": 3.3, "batches": 3, "sample": 8, "samples": 20, "others": others}
    look = by_hand.found(3, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=1e30, absmax=1e30),))
    log = by_hand.rank(0, Warned("batch_outlier", 3, facts, "x"), by_hand.loss(3, value=float("inf")), look, world=1)
    told = analyse(by_hand.run(log, world=1)).verdict.suggestions
    assert any("x.clamp(" in (one.code or "") for one in told) is clipped
    assert any("bring it to theirs" in one.text for one in told) is not clipped


def test_all_of_a_batch_that_is_unlike_the_others_is_clipped(by_hand):
    facts = {"size": 3e5, "batches": 147}
    seen = [(12, "early", 4.0), (16, "support", 4.2), (16, "query", 3.9), (16, "input", 1.0), (16, "input", 0.5)]
    warned = (Warned("batch_outlier", step, {**facts, "largest": most}, name) for step, name, most in seen)
    look = by_hand.found(16, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=1e30, absmax=1e30),))
    log = by_hand.rank(0, *warned, by_hand.loss(16, value=float("inf")), look, by_hand.finished(17), world=1)
    told = [one.code for one in analyse(by_hand.run(log, world=1)).verdict.suggestions]
    assert "support = support.clamp(-8.4, 8.4)\nquery = query.clamp(-7.8, 7.8)\nx = x.clamp(-2, 2)" in told


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_a_batch_of_one_rank_is_told_with_it_where_all_of_them_broke(by_hand, ranks):
    facts = {"size": 3e5, "largest": 4.3, "batches": 147, "dataset": "TensorDataset", "index": 82}
    look = by_hand.found(3, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=1e30, absmax=1e30),))
    logs = [
        by_hand.rank(
            rank, *([Warned("batch_outlier", 3, facts, "x")] if rank in ranks else []),
            by_hand.loss(3, value=float("inf")), look, by_hand.finished(4), world=2,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    verdict = analyse(by_hand.run(*logs, world=2)).verdict
    assert (verdict.cause, verdict.origin.ranks) == ("data_outlier", (0, 1))
    one = ranks == (1,)
    assert any(text.startswith("At step 3 on rank 1 ") for text in verdict.evidence) is one
    assert any("TensorDataset[82] on rank 1," in each.text for each in verdict.suggestions) is one


def test_batches_of_several_ranks_are_told_once_by_the_largest(by_hand):
    facts = {"largest": 1.0, "batches": 4, "samples": 16, "others": 15, "deviations": 881.0}
    look = by_hand.found(4, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=1e30, absmax=1e30),))
    logs = [
        by_hand.rank(
            rank, Warned("batch_outlier", 4, {**facts, "size": 17000.0 + rank, "sample": 5 * rank + 1}, "input"),
            by_hand.loss(4, value=float("inf")), look, by_hand.finished(5), world=2,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    report, found = findings(by_hand, *logs)
    assert any(text.startswith("At step 4 on rank 1 sample 6 of 16") for text in report.verdict.evidence)
    assert [text for one in found if "sample 1 of" in (text := one.text)] == []


@pytest.mark.parametrize(("step", "told_of"), [(44, True), (43, False)])
def test_a_batch_far_longer_than_all_before_is_the_story_behind_an_overflow(by_hand, step, told_of):
    look = by_hand.found(
        44, outputs=(by_hand.fact(posinf=1),), inputs=(by_hand.fact(max=3e38, absmax=3e38),),
        site=Site("cell", "Linear", "aten.mm.default"),
    )  # fmt: skip
    facts = {"shape": [1, 619, 3], "longest": [1, 59, 3], "batches": 44}
    warned = Warned("batch_longer", step, facts, "series", at_harm=True)
    log = by_hand.rank(0, warned, by_hand.loss(44, value=float("inf")), look, by_hand.finished(45), world=1)
    verdict = analyse(by_hand.run(log, world=1)).verdict
    assert (verdict.cause == "data_outlier") is told_of
    said = "series is [1x619x3]: 10 times as many values as in the largest of 44 batches before ([1x59x3])"
    assert any(said in text for text in verdict.evidence) is told_of
    assert (verdict.suggestions[0].code == "series = series[:, :59]") is told_of


@pytest.mark.parametrize(("others", "said"), [(31, ", and 31 others hold such;"), (1, ", and 1 other holds such;")])
def test_a_whole_batch_in_another_unit_is_not_told_as_one_sample(others, said):
    facts = {"size": 9229.0, "largest": 4.3, "batches": 47, "deviations": 72.6, "sample": 23, "samples": 32}
    assert said in told(Warned("batch_outlier", 47, {**facts, "others": others}, "x"))
    assert "such" not in told(Warned("batch_outlier", 47, facts, "x"))


def test_a_draw_of_nothing_says_why_and_how_to_mend_it(by_hand):
    facts = {
        "at": ["/home/me/play.py", 8], "name": "legal", "rows": [3], "empty": 1, "of": 8, "zero": "allowed",
        "made": "probs * allowed", "made_at": ["/home/me/play.py", 7],
    }  # fmt: skip
    report, (found,) = findings(by_hand, by_hand.rank(0, Warned("nothing_to_draw", 17, facts), world=1))
    assert found.text == (
        "Rank 0, step 17: legal sums to 0 in row 3 of 8 (drawn from at play.py:8); "
        "legal is probs * allowed (set at play.py:7), and allowed is 0 there."
    )
    code = "legal = torch.where(legal.sum(-1, keepdim=True) > 0, legal, torch.ones_like(legal))"
    assert [one.code for one in report.verdict.suggestions] == [None, code]
