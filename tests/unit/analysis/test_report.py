"""The report: complete in its keys, in JSON and back, bounded, with a note for all that could not be seen."""

import json
import math
from dataclasses import fields, replace

import pytest

from nandiag.analysis import Report, analyse
from nandiag.events import Finished, Harm, History, Looked, Note, Printed, ProbeDark, Site, Stopping
from nandiag.events.forms import build
from nandiag.render.json import dumps
from nandiag.store.run import AgentEnd, RunInfo

RUN = "id command started nproc nnodes world_size hosts versions policy exit_code state"
VERDICT = (
    "anomaly summary confidence reproduced cause mechanism last_finite_step origin evidence reasons suggestions spread"
)
ORIGIN = (
    "kind rank ranks step global_step micro_step phase module module_class op node forward_op file line column "
    "function source inputs outputs time host pid device gpu_uuid outputs_are"
)
FACT = "dtype shape numel nan posinf neginf zeros min max absmax device placement"
RANK = "state last_step attached attempt events exit_code signal"


def vars_of(look):
    """The fields of an event but for its outcome, by name."""
    return {one.name: getattr(look, one.name) for one in fields(look) if one.name != "outcome"}


@pytest.fixture
def harmed(by_hand):
    past = History((3, 4, 5), (0.5, 0.6, math.nan), (1.0, math.inf, None), (0.1, 0.1, 0.1), (None, None, None))
    return by_hand.run(
        by_hand.rank(0, by_hand.gradient(5), by_hand.finite(5), past),
        by_hand.rank(1, by_hand.loss(5), by_hand.gradient(5), by_hand.found(5), past),
    )


def test_every_key_of_the_contract_is_there(harmed):
    data = json.loads(dumps(analyse(harmed)))
    assert list(data) == [
        "schema",
        "run",
        "verdict",
        "findings",
        "ranks",
        "history",
        "activations",
        "notes",
        "nccl",
        "hang",
        "left_out",
    ]
    assert data["schema"] == 1
    assert list(data["run"]) == RUN.split()
    assert list(data["run"]["versions"]) == ["nandiag", "torch", "python", "nccl", "cuda", "driver"]
    assert list(data["verdict"]) == VERDICT.split()
    assert list(data["verdict"]["origin"]) == ORIGIN.split()
    assert set(FACT.split()) <= set(data["verdict"]["origin"]["inputs"][0])
    assert list(data["verdict"]["suggestions"][0]) == ["text", "code"]
    assert list(data["verdict"]["spread"][0]) == ["ranks", "step", "phase", "what", "via", "names"]
    assert list(data["ranks"]["0"]) == RANK.split()
    assert list(data["findings"][0]) == ["slug", "severity", "text", "ranks", "step"]


def test_non_finite_numbers_are_strings(harmed):
    history = json.loads(dumps(analyse(harmed)))["history"]["1"]
    assert history["loss"] == [0.5, 0.6, "nan"]
    assert history["grad_norm"] == [1.0, "inf", None]


def test_a_report_survives_json(harmed):
    report = analyse(harmed)
    again = build(Report, json.loads(dumps(report)))
    assert dumps(again) == dumps(report)


def test_the_run_is_told_from_launcher_and_ranks(by_hand):
    info = RunInfo("r1", ("nandiag",), "2026", nproc=2, nnodes=2, world_size=2, policy="stop", versions={"torch": "1"})
    agents = (AgentEnd("a", 1, 0, 1, "failed"), AgentEnd("b", 2, 1, 3, "stopped"))
    run = analyse(by_hand.run(by_hand.rank(0), by_hand.rank(1), info=info, agents=agents)).run
    assert (run.id, run.policy, run.nnodes, run.exit_code, run.state) == ("r1", "stop", 2, 3, "stopped")
    assert (run.versions["torch"], run.versions["python"], run.versions["nccl"]) == ("2.13.0", "3.12.1", None)
    assert run.hosts == ("node0",)


@pytest.mark.parametrize(
    ("event", "note"),
    [
        (Note("the file is full"), "Rank 0: the file is full"),
        (ProbeDark("scaler", "TypeError", 3), "Rank 0: the probe scaler was switched off at step 3: TypeError"),
        (Looked("refused", "replay", 5, reason="no room"), "Rank 0: step 5 could not be run again: no room"),
    ],
)
def test_what_could_not_be_seen_is_a_note(by_hand, event, note):
    assert note in analyse(by_hand.run(by_hand.rank(0, event, world=1), world=1)).notes


def test_one_rank_of_another_launcher_is_told_in_the_singular(by_hand):
    info = RunInfo("r1", ("nandiag",), "2026", nproc=1, nnodes=2, world_size=2)
    (told, *_) = analyse(by_hand.run(by_hand.rank(0, Finished(3)), info=info)).notes
    assert told.startswith("Rank 1 of 2 was started by another launcher")


@pytest.mark.parametrize(
    ("info", "agents", "said"),
    [
        ({"nnodes": 2}, (0,), "were started by another launcher"),
        ({"nnodes": 2}, (0, 1), "left no word: not attached"),
        ({"nnodes": 1}, (0,), "left no word: not attached"),
        ({"launcher": "none"}, (0,), "were started by another launcher"),
        ({"nnodes": 2}, (), "were started by another launcher"),
    ],
)
def test_ranks_of_other_launchers_are_not_called_lost(by_hand, info, agents, said):
    ends = {0: (by_hand.ended(0, 0), by_hand.ended(1, 0)), 1: (by_hand.ended(2, 0), by_hand.ended(3, 0))}
    record = by_hand.run(
        *(by_hand.rank(n, Finished(3), world=4) for n in (0, 1)), world=4,
        info=RunInfo("r1", ("nandiag",), "2026", nproc=2, world_size=4, **info),
        agents=tuple(AgentEnd("a", n, n, 0, "succeeded", ranks=ends[n]) for n in agents),
    )  # fmt: skip
    told = [text for text in analyse(record).notes if text.startswith("Ranks 2-3 of 4")]
    assert len(told) == 1
    assert said in told[0]


def test_the_kind_is_that_of_the_first_bad_output(by_hand):
    outputs = (by_hand.fact(posinf=1), by_hand.fact(neginf=4, nan=2))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.found(5, outputs=outputs), world=1), world=1)).verdict
    assert (verdict.origin.kind, verdict.summary.split()[0]) == ("inf", "+Inf")


def test_what_an_update_made_names_the_parameter(by_hand):
    facts = {"reconstructed": True, "parameters": ["fc.weight", "fc.bias"]}
    look = by_hand.found(5, phase="optimizer", site=Site(op="aten.div.Tensor"), facts=facts)
    verdict = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict
    assert verdict.summary.endswith("in the update of fc.weight and 1 more")
    assert (verdict.confidence, verdict.reproduced) == ("inferred", None)
    assert any("reconstructed inputs" in text for text in verdict.evidence)


def test_what_an_update_found_of_zeros_is_told(by_hand):
    facts = {"reconstructed": True, "parameters": ["fc.weight"], "began_of_zeros": ["sq"]}
    given = by_hand.fact(), by_hand.fact(zeros=4, min=0.0)
    look = by_hand.found(5, phase="optimizer", site=Site(op="aten.div.Tensor"), inputs=given, facts=facts)
    told = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict.evidence
    assert "What the optimizer kept as sq held zeros before that update." in told
    assert "The update of fc.weight divides by a quantity that is 0." in told


def test_what_was_computed_anew_in_the_place_of_what_was_kept_is_inferred(by_hand):
    look = by_hand.found(5, facts={"reconstructed": True, "forgot": True})
    verdict = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict
    assert verdict.confidence == "inferred"
    assert any("without what the script had kept" in text for text in verdict.evidence)
    assert not any("reconstructed inputs" in text for text in verdict.evidence)


def test_the_first_bad_place_in_the_output_is_said(by_hand):
    outputs = (by_hand.fact(nan=3, first_bad=(2, 1)),)
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.found(5, outputs=outputs), world=1), world=1)).verdict
    assert "The first non-finite value of the output is at [2, 1]." in verdict.evidence


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"rows": [2], "rows_of": "Times", "row_items": [77]},
            " If its rows are those of the batch, row 2 was Times[77].",
        ),
        (
            {"rows": [2, 5], "rows_of": "Times", "row_items": [77, "b"]},
            " If its rows are those of the batch, rows 2, 5 were Times[77], Times['b'].",
        ),
        ({"rows": [2], "rows_of": "Times", "row_items": []}, ""),
        ({"rows": 2, "rows_of": "Times", "row_items": 77}, ""),
    ],
)
def test_the_samples_of_the_bad_rows_are_said(by_hand, facts, said):
    look = by_hand.found(5, outputs=(by_hand.fact(nan=3, first_bad=(2, 1)),), facts=facts)
    told = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict.evidence
    assert f"The first non-finite value of the output is at [2, 1].{said}" in told


@pytest.mark.parametrize(
    ("name", "said"), [("input", ": input"), ("input 0", ": input 0"), ("history", ": input history"), (None, "")]
)
def test_an_input_is_named_once_and_its_first_bad_place_whole(by_hand, name, said):
    bad = by_hand.fact(name, nan=1, first_bad=(11, 7))
    facts = {"dataset": "Windows", "dataset_index": 341}
    look = by_hand.found(5, source="input", phase="data", inputs=(bad,), outputs=(), facts=facts)
    verdict = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict
    assert verdict.summary == f"NaN in the data of rank 0 at step 5{said}"
    assert any(text.endswith("is at [11, 7].") for text in verdict.evidence)


def test_the_same_note_of_many_ranks_is_one(by_hand):
    ranks = [by_hand.rank(n, Note("x"), Finished(3), world=4) for n in range(4)]
    assert analyse(by_hand.run(*ranks, world=4)).notes == ("Ranks 0-3: x",)


def test_a_rank_without_torch_was_not_watched(by_hand):
    report = analyse(by_hand.run(by_hand.rank(0, Finished(0), world=1, armed=False), world=1))
    assert report.notes == ("Rank 0: torch was never imported there, so nothing was watched.",)


def test_of_a_rank_whose_file_is_torn_it_is_not_known_whether_torch_was_imported(by_hand):
    torn = by_hand.rank(0, Finished(0), world=1, armed=False, notes=("The last line is torn.",))
    assert analyse(by_hand.run(torn, world=1)).notes == ("Rank 0: The last line is torn.",)


def test_the_headline_says_that_a_rank_without_a_sentinel_was_not_watched(by_hand):
    dark = ProbeDark("sentinel", "RuntimeError: no item (search.py:103)")
    report = analyse(by_hand.run(by_hand.rank(0, dark, Finished(3), world=1), world=1))
    assert report.verdict.summary.endswith("; a probe of nandiag's failed, and nothing was watched from then on")


def test_a_rank_whose_runtime_broke_at_its_start_is_not_said_to_be_without_torch(by_hand):
    dark = ProbeDark("arm", "AttributeError: apply (wraps.py:105)")
    report = analyse(by_hand.run(by_hand.rank(0, dark, Finished(0), world=1, armed=False), world=1))
    assert report.notes == (
        "Rank 0: the probe arm was switched off: AttributeError: apply (wraps.py:105)",
        "Rank 0: nothing was watched there.",
    )


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ({"neginf": 1}, ["-Inf alone may be meant as a mask, and so the run went on with it in dt_bias."]),
        ({"neginf": 1, "nan": 1}, []),
    ],
)  # fmt: skip
def test_a_weight_with_minus_inf_alone_says_that_and_why_the_run_went_on(by_hand, kind, told):
    bad = Harm("parameter", 0, "init", (by_hand.fact("dt_bias", **kind),), 1, 4)
    ran = by_hand.rank(0, bad, Finished(15, 0, 14), world=1)
    report = analyse(by_hand.run(ran, world=1, ends=(by_hand.ended(0, 0),)))
    assert [one.text for one in report.findings if one.slug == "went_on"] == told


def test_a_step_that_was_not_run_again_for_another_rank_is_told_where_nothing_else_is(by_hand):
    idle = Looked("refused", "replay", 3, reason="another rank could not run the step again")
    own = Looked("refused", "replay", 3, reason="the script reads a socket")

    def told(first, second):
        ranks = (by_hand.rank(0, first, Finished(4)), by_hand.rank(1, second, Finished(4)))
        return analyse(by_hand.run(*ranks)).notes

    assert told(idle, idle) == ("Ranks 0-1: step 3 could not be run again: another rank could not run the step again",)
    assert told(idle, own) == ("Rank 1: step 3 could not be run again: the script reads a socket",)
    assert told(idle, by_hand.found(3)) == ()


def test_findings_and_notes_are_bounded(by_hand):
    harms = [by_hand.loss(step) for step in range(500)]
    notes = [Note(f"n{number}") for number in range(500)]
    report = analyse(by_hand.run(by_hand.rank(0, *harms, *notes, world=1), world=1))
    assert len(report.findings) < 100
    assert report.findings[-1].slug == "left_out"
    assert len(report.notes) <= 101
    assert len(report.verdict.spread) <= 32


def test_a_proven_op_is_not_outshone_by_a_possible_story(by_hand):
    norms = (1.0, 1.0, 1.0, 500.0, None)
    past = History(tuple(range(1, 6)), (None,) * 5, norms, (0.1,) * 5, (None,) * 5)
    record = by_hand.run(by_hand.rank(0, by_hand.found(5), past, world=1), world=1)
    verdict = analyse(record).verdict
    assert (verdict.cause, verdict.mechanism) == ("log_of_zero", "log_of_zero")
    assert any("gradient norm grew" in text for text in verdict.evidence)


def test_a_log_that_hides_bad_losses_is_told(by_hand):
    said = Printed(16, 3, 5, "{'loss': 4.02}")
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(16), said, Finished(40))))
    (finding,) = [one for one in report.findings if one.slug == "hidden_nonfinite"]
    assert (finding.severity, finding.ranks, finding.step) == ("warning", (0,), 16)
    assert "3 bad losses" in finding.text
    assert "{'loss': 4.02}" in finding.text


@pytest.mark.parametrize(("bad", "many"), [((91, 9, 99), "each"), ((12, 9, 99), "12"), ((1, 9, 9), None), ((), None)])
def test_bad_losses_that_follow_the_first_are_counted(by_hand, bad, many):
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(9), Finished(100, bad_losses=bad), world=1), world=1))
    found = [one.text for one in report.findings if one.slug == "nonfinite_again"]
    text = f"The loss of rank 0 was bad in {many} of the steps 9 to 99: the first of them is told."
    assert found == ([text] if many else [])


def test_bad_losses_are_not_counted_where_weights_are_bad_or_the_log_is_told_of(by_hand):
    ends = Finished(100, bad_losses=(91, 9, 99))
    said = by_hand.rank(0, by_hand.loss(9), Printed(9, 91, 5, "loss 1"), ends, world=1)
    report = analyse(by_hand.run(said, world=1))
    assert not [one for one in report.findings if one.slug == "nonfinite_again"]


_ELSEWHERE = Site("net.gain", "Gain", "aten.div.Tensor", file="train.py", line=41, source="    others = total / local")


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ({"site": _ELSEWHERE}, "the NaN and Inf of step 20 came about in line 41, by div: others = total / local"),
        ({"site": replace(_ELSEWHERE, file="/a/loss.py")}, "came about at loss.py:41, by div: others"),
        ({"site": replace(_ELSEWHERE, op=None, node="DivBackward0")}, "came about in line 41, by DivBackward0: others"),
        ({"site": replace(_ELSEWHERE, op=None, source=None)}, "came about in line 41."),
        ({}, None),  # the line that is told
        ({"site": _ELSEWHERE, "source": "received"}, None),
        ({"site": _ELSEWHERE, "source": "parameter"}, None),
    ],
)
def test_what_stopped_the_run_is_told_where_it_came_about_elsewhere(by_hand, later, told):
    """A loss that is bad and does no harm is told first; the weights are in danger by another line."""
    own = Looked("found", **{**vars_of(by_hand.found(20)), "outputs": (by_hand.fact(nan=1, posinf=2),), **later})
    stop = Stopping(20, "auto", "stop", "non-finite gradient (fc.weight)")
    events = (by_hand.loss(9), by_hand.found(9), by_hand.gradient(20), own, stop)
    report = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1))
    found = [one.text for one in report.findings if one.slug == "stopped_elsewhere"]
    assert bool(found) is bool(told)
    assert not told or (told in found[0] and found[0].startswith("What stopped it is not what is told first:"))


def test_what_stopped_a_run_that_diverged_is_no_other_fault(by_hand):
    own = Looked("found", **{**vars_of(by_hand.found(20)), "site": _ELSEWHERE})
    stop = Stopping(20, "auto", "stop", "non-finite gradient (fc.weight)")
    events = (by_hand.state(8, what="optimizer_state"), by_hand.found(8), by_hand.gradient(20), own, stop)
    report = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1))
    assert not [one for one in report.findings if one.slug == "stopped_elsewhere"]


@pytest.mark.parametrize("losses", [0, 1])
def test_a_log_hides_nothing_where_no_loss_was_bad_nor_where_one_alone_was(by_hand, losses):
    harms = [by_hand.loss(16)] * losses
    report = analyse(by_hand.run(by_hand.rank(0, *harms, Printed(16, losses, 5, "loss 1"), Finished(40))))
    assert not [one for one in report.findings if one.slug == "hidden_nonfinite"]


@pytest.mark.parametrize("agents", [(AgentEnd("node0", 1, 0, 3, "stopped"),), ()])
def test_a_run_that_was_stopped_is_not_well_though_nothing_is_left_of_why(by_hand, agents):
    """The files of its ranks were cut, by a full disk say: neither that it was fine is known, nor where to resume."""
    record = by_hand.run(by_hand.rank(0, steps=12), by_hand.rank(1, steps=12), agents=agents)
    report = analyse(replace(record, stopped=True))
    assert report.verdict.anomaly
    assert report.verdict.origin is None
    assert "stopped this run at an anomaly" in report.verdict.summary
    assert report.verdict.last_finite_step is None


def test_a_run_that_was_stopped_and_of_which_the_reason_is_left_has_that(by_hand):
    agents = (AgentEnd("node0", 1, 0, 3, "stopped"),)
    record = by_hand.run(by_hand.rank(0, by_hand.loss(3)), by_hand.rank(1, steps=4), agents=agents)
    assert "is not in the folder" not in analyse(replace(record, stopped=True)).verdict.summary


@pytest.mark.parametrize(
    ("total", "micro_step", "told"), [(1, 0, ""), (3, 0, ", micro-step 0"), (3, 2, ", micro-step 2")]
)
def test_the_micro_step_is_told_where_there_are_several(by_hand, total, micro_step, told):
    harm = replace(by_hand.loss(5, micro_step=micro_step), total=total)
    said = by_hand.rank(0, harm, by_hand.found(5, micro_step=micro_step), world=1)
    verdict = analyse(by_hand.run(said, world=1)).verdict
    assert verdict.summary == f"-Inf born on rank 0 at step 5{told} in forward of net.head"


def test_a_weight_that_no_optimizer_trains_is_not_said_to_be_frozen(by_hand):
    """A server's, whose clients are trained, asks for gradients all the same."""
    log = by_hand.rank(0, by_hand.state(4, what="frozen", phase="forward", since=3), by_hand.finished(5), world=1)
    report = analyse(by_hand.run(log, world=1))
    told = [report.verdict.summary, *(one.text for one in report.findings)]
    assert any("untrained parameter" in text for text in told)
    assert not any("frozen" in text for text in told)
