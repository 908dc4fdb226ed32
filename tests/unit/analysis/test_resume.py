"""Which checkpoint to resume from, and which are bad."""

import math

import pytest
import torch

from nandiag.analysis import analyse
from nandiag.analysis.causes import bad_start
from nandiag.analysis.verdict.resume import resume_at, resume_words
from nandiag.events import Finished, Harm, History, Looked, Raised, Site, Stopping


def test_where_to_resume_from_is_the_worst_rank(by_hand):
    record = by_hand.run(
        by_hand.rank(0, Finished(30, 0, 29)), by_hand.rank(1, by_hand.state(20, since=17), Finished(30, 0, 29))
    )
    assert analyse(record).verdict.last_finite_step == 17


@pytest.mark.parametrize("end", [Finished(4), Raised("RuntimeError", "Connection closed by peer", "", 4), Finished(0)])
def test_a_rank_whose_inputs_had_come_to_an_end_does_not_send_the_others_back(by_hand, end):
    stop = Stopping(7, "auto", "stop", "gradient")
    record = by_hand.run(by_hand.rank(0, end), by_hand.rank(1, by_hand.gradient(7), stop, Finished(7, 0, 6)))
    assert analyse(record).verdict.last_finite_step == 6


def test_a_rank_that_told_no_end_counts_where_it_was_last_seen(by_hand):
    stop = Stopping(7, "auto", "stop", "gradient")
    record = by_hand.run(by_hand.rank(0, steps=4), by_hand.rank(1, by_hand.gradient(7), stop, Finished(7, 0, 6)))
    assert analyse(record).verdict.last_finite_step == 3


@pytest.mark.parametrize(("facts", "last"), [({}, 9), ({"dataset": "Tiles", "dataset_index": 3}, 10)])
def test_what_a_dataset_made_is_no_update_by_hand(by_hand, facts, last):
    look = by_hand.found(11, phase="data", facts=facts)
    record = by_hand.run(by_hand.rank(0, by_hand.loss(11), look, Finished(11, 0, 10), world=1), world=1)
    assert analyse(record).verdict.last_finite_step == last


def test_the_first_weight_to_go_bad_decides_where_to_resume_from(by_hand):
    states = by_hand.state(20, since=17), by_hand.state(25, "fc.bias", since=24)
    assert analyse(by_hand.run(by_hand.rank(0, *states, world=1), world=1)).verdict.last_finite_step == 17


def test_a_recovered_run_resumes_from_its_end(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.loss(5), Finished(30, 0, 29), world=1), world=1)
    assert analyse(record).verdict.last_finite_step == 29


def test_a_step_that_only_one_of_two_optimizers_came_to_is_none_to_resume_after(by_hand):
    stop = Stopping(9, "auto", "stop", "gradient")
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(9), stop, Finished(9, 0, 9), world=1), world=1)
    assert analyse(record).verdict.last_finite_step == 8


def test_a_stop_before_the_update_keeps_the_step_before(by_hand):
    stop = Stopping(5, "auto", "stop", "gradient")
    record = by_hand.run(*(by_hand.rank(n, by_hand.gradient(5), stop, steps=5) for n in (0, 1)))
    assert analyse(record).verdict.last_finite_step == 4


def born_bad(by_hand, step, *, birth="op", phase="init", **harms):
    weight = by_hand.fact("emb.weight", nan=3)
    facts = {"weight": "emb.weight", "weight_is": "parameter", "birth": birth, "call": "div"}
    look = by_hand.found(step, method="record", phase=phase, outputs=(weight,), facts=facts)
    seen = [by_hand.loss(step), *harms.values(), look, Finished(step, 0, step - 1)]
    return analyse(by_hand.run(by_hand.rank(0, *seen, world=1), world=1))


def test_a_weight_that_was_loaded_bad_in_mid_run_is_not_said_to_have_been_so_from_the_start(by_hand):
    weight = by_hand.fact("emb.weight", nan=3)
    facts = {"weight": "emb.weight", "weight_is": "buffer", "birth": "file", "call": "load", "loaded_step": 15}
    look = by_hand.found(15, method="record", phase="checkpoint", outputs=(weight,), facts=facts)
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(15), look, Finished(15, 0, 14), world=1), world=1))
    told = " ".join([report.verdict.summary, *report.verdict.evidence, *(one.text for one in report.findings)])
    assert "loaded behind the update of step 14, used at step 15" in told
    assert "first step" not in told


@pytest.mark.parametrize("phase", ["init", "checkpoint"])
def test_a_weight_that_was_bad_from_birth_is_in_every_checkpoint_of_the_run(by_hand, phase):
    report = born_bad(by_hand, 29, phase=phase)
    verdict = report.verdict
    assert verdict.last_finite_step is None
    held = next(one.text for one in report.findings if one.slug == "held_bad")
    assert held == "Mend emb.weight first: it was bad before the first step, and so is whatever this run saved of it."
    assert verdict.summary.endswith("before the first step, used at step 29")
    assert not any("optimizer was first seen" in text for text in verdict.evidence)


def test_the_values_of_a_weight_are_not_those_of_the_op_that_made_it_bad(by_hand):
    divisor, made, weight = by_hand.fact(zeros=2), by_hand.fact(posinf=2), by_hand.fact("emb.weight", nan=2)
    facts = {"weight": "emb.weight", "weight_is": "buffer", "birth": "op", "call": "__rtruediv__"}
    site = Site(op="aten.reciprocal.default", file="train.py", line=3, source="w = 1.0 / freq")
    look = Looked(
        "found",
        "record",
        0,
        phase="init",
        source="op",
        site=site,
        inputs=(divisor,),
        outputs=(made, weight),
        facts=facts,
    )
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(0), look, world=1), world=1)).verdict
    assert verdict.cause == "division_by_zero"
    assert verdict.evidence[0].endswith("1/0 is Inf")
    assert verdict.summary == "NaN in buffer emb.weight on rank 0 before the first step"


def test_a_last_write_may_lie_between_two_steps(by_hand):
    report = born_bad(by_hand, 29, birth="last")
    verdict = report.verdict
    assert verdict.last_finite_step is None
    assert all(one.slug != "held_bad" for one in report.findings)
    assert verdict.summary.endswith("before step 29")


@pytest.mark.parametrize(("last", "told"), [(15, True), (14, False)])
def test_weights_that_were_spoiled_between_two_updates_may_be_in_the_newest_checkpoint(by_hand, last, told):
    look = by_hand.found(16, facts={"began_bad": ["0.weight", "0.bias"], "all_bad": 4})
    said = [by_hand.loss(16), look, Finished(16, 0, last)]
    report = analyse(by_hand.run(by_hand.rank(0, *said, world=1), world=1))
    texts = [one.text for one in report.findings if one.slug == "spoiled_between"]
    assert bool(texts) is told, report.findings
    assert all("step 15's update" in text and "(0.weight and 3 more)" in text for text in texts)
    assert (resume_at(report) is None) is told


def test_what_was_bad_from_birth_is_not_called_finite_before(by_hand):
    harm = by_hand.state(0, "emb.weight", what="buffer", phase="forward", since=-1)
    verdict = born_bad(by_hand, 0, phase="checkpoint", harm=harm).verdict
    assert not any("was finite" in text for text in verdict.evidence)


def with_bad_state(by_hand, *tensors, more=(), optimizer="Adam", since=11):
    bad = Harm("optimizer_state", 12, "optimizer", tensors, 2, 2, optimizer=optimizer, since=since)
    return analyse(
        by_hand.run(
            by_hand.rank(0, by_hand.loss(12, value=math.inf), bad, *more, Finished(20, 0, 19), world=1),
            world=1, ends=(by_hand.ended(0, 0),),
        )
    )  # fmt: skip


def infinite(by_hand, name, **kind):
    return by_hand.fact(f"{name} of weight", shape=(4,), **kind or {"posinf": 4})


def test_weights_that_an_infinite_second_moment_holds_still_are_told(by_hand):
    report = with_bad_state(by_hand, infinite(by_hand, "exp_avg_sq"), infinite(by_hand, "exp_avg_sq"))
    (told,) = [one for one in report.findings if one.slug == "weights_stand_still"]
    assert (told.severity, told.step) == ("warning", 12)
    assert "its updates of these weights are 0 from step 12 on, and they never move again" in told.text
    assert report.verdict.last_finite_step == 11
    assert all(one.slug != "went_on" for one in report.findings)


@pytest.mark.parametrize("kind", ["nan", "momentum", "sgd", "lost", "stopped"])
def test_no_weight_is_said_to_stand_still_that_is_lost_or_moves(by_hand, kind):
    tensor = infinite(by_hand, "exp_avg" if kind == "momentum" else "exp_avg_sq", **{"nan": 1} if kind == "nan" else {})
    more = {"lost": (by_hand.state(12),), "stopped": (Stopping(12, "stop", "stop", "state"),)}.get(kind, ())
    report = with_bad_state(by_hand, tensor, more=more, optimizer="SGD" if kind == "sgd" else "Adam")
    assert all(one.slug != "weights_stand_still" for one in report.findings)


def test_the_check_of_what_was_loaded_is_of_the_module_that_was(by_hand):
    weight = by_hand.fact("1.running_mean", nan=4)
    facts = {
        "weight": "1.running_mean",
        "weight_is": "buffer",
        "birth": "file",
        "key": "1.running_mean",
        "file": "bn.pt",
    }
    state = "state = torch.load(p)"
    cases = (
        ("b = body(); b.load_state_dict(torch.load(p))", None, "b"),
        (state, "self.norms", "self.norms"),
        (state, None, None),
    )
    for source, holder, model in cases:
        site = Site("1", "BatchNorm1d", file="train.py", line=8, source=source)
        look = by_hand.found(
            0,
            method="record",
            phase="checkpoint",
            site=site,
            source="outside",
            inputs=(),
            outputs=(weight,),
            facts=facts if holder is None else {**facts, "held_by": holder},
        )
        harm = by_hand.loss(0, names={"model": "head"})
        verdict = analyse(by_hand.run(by_hand.rank(0, harm, look, world=1), world=1)).verdict
        code = f"assert all(v.isfinite().all() for v in {model}.state_dict().values())"
        assert verdict.suggestions[1].code == (None if model is None else code)


def test_a_rank_that_found_the_origin_does_not_say_of_another_look_at_that_step_that_it_failed(by_hand):
    update = Looked("refused", "replay", 3, reason="the update needs what only the script can give it")
    found, later = by_hand.found(3), by_hand.found(4)

    def told(look):
        return analyse(by_hand.run(by_hand.rank(0, look, update, Finished(4), world=1), world=1)).notes

    assert told(found) == ()
    assert told(later) == ("Rank 0: step 3 could not be run again: the update needs what only the script can give it",)


@pytest.mark.parametrize(("optimizer", "phase", "last"), [(None, "data", 5), ("SGD", "data", 6), (None, "loss", 6)])
def test_behind_an_update_by_hand_that_was_bad_no_checkpoint_is_good(by_hand, optimizer, phase, last):
    made = by_hand.found(7, phase=phase)
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(7, optimizer=optimizer), made, world=1), world=1)
    assert analyse(record).verdict.last_finite_step == last


def test_an_update_by_hand_that_the_next_step_shows_is_told_by_the_step_that_made_it(by_hand):
    made = by_hand.found(7, phase="optimizer", facts={"made_at_step": 6})
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(7), made, world=1), world=1)).verdict
    assert "at step 6" in verdict.summary
    assert verdict.summary.endswith("used at step 7")
    assert verdict.last_finite_step == 5


def test_weights_that_another_rank_saw_begin_bad_send_the_run_back_too(by_hand):
    """The origin may be what a rank sent to the others between two steps: its own look begins no step."""
    began = {"began_bad": ["0.weight", "0.bias"], "all_bad": 4}
    received = by_hand.found(16, source="received", site=None, inputs=(), outputs=(), facts=began)
    logs = (
        by_hand.rank(0, by_hand.loss(16), received, Finished(16, 0, 15)),
        by_hand.rank(1, by_hand.loss(16), by_hand.found(16), Finished(16, 0, 15)),
    )
    report = analyse(by_hand.run(*logs))
    assert report.verdict.origin.ranks == (1,)
    (told,) = (one.text for one in report.findings if one.slug == "spoiled_between")
    assert "behind step 15's update" in told
    assert "(0.weight and 3 more)" in told


@pytest.mark.parametrize(
    ("norms", "told"),
    [
        ([1.0] * 12 + [3.0, 9.0, 80.0, 900.0, 2e4, 1e7], (12, True)),  # its update made the first that was not calm
        ([1.0] * 18, (18, False)),
        ([1.0, 9.0, 80.0, 900.0, 2e4, 1e7], (6, False)),  # from its first steps on: nothing good was ever saved
    ],
)
def test_a_run_that_ran_away_is_resumed_before_its_last_calm_update(by_hand, norms, told):
    step, many = len(norms), len(norms)
    past = History(tuple(range(many)), tuple(norms), tuple(norms), (0.01,) * many, (None,) * many)
    large = by_hand.fact(max=3e20, absmax=3e20)
    look = by_hand.found(step, inputs=(large, large), outputs=(by_hand.fact(posinf=1),), facts={"float64_finite": True},
                         site=Site("net.head", "Head", "aten.mm.default", file="train.py", line=12))  # fmt: skip
    events = by_hand.loss(step, value=math.inf), past, look, Finished(step, 0, step - 1)
    report = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1))
    assert resume_at(report) == told


def test_that_no_more_than_the_state_is_bad_is_told(by_hand):
    bad = Harm("optimizer_state", 12, "optimizer", (by_hand.fact("m of weight", nan=4),), 1, 2, optimizer="Lion")
    said = (
        "The optimizer's state is bad (m of weight); no weight was seen to be, but from such a state none is trained."
    )
    told = analyse(by_hand.run(by_hand.rank(0, bad, world=1), world=1)).verdict.evidence
    assert said in told
    weights = by_hand.state(13, "weight")
    told = analyse(by_hand.run(by_hand.rank(0, bad, weights, world=1), world=1)).verdict.evidence
    assert not any("no weight was seen" in text for text in told)


def test_where_the_state_alone_is_bad_nothing_is_said_of_weights_that_were_looked_at_no_later(by_hand):
    bad = Harm("optimizer_state", 12, "optimizer", (by_hand.fact("v of weight", posinf=4),), 1, 2, since=3)
    report = analyse(by_hand.run(by_hand.rank(0, bad, Finished(20, 0, 19), world=1), world=1))
    said = "from a checkpoint saved before step 4; the optimizer's state was last seen finite then"
    assert resume_words(report, resume_at(report)[0]).startswith(said)
    more = by_hand.run(by_hand.rank(0, bad, by_hand.state(13, "weight"), world=1), world=1)
    assert "state" not in resume_words(analyse(more), 4)


def test_a_rank_that_stopped_in_one_thread_and_went_on_in_others_resumes_from_before_the_harm(by_hand):
    stop = Stopping(22, "stop", "stop", "gradient")
    record = by_hand.run(by_hand.rank(0, by_hand.loss(22), stop, Finished(40, 0, 38), world=1), world=1)
    report = analyse(record)
    assert (report.verdict.last_finite_step, resume_at(report)) == (21, (22, False))


def test_weights_that_a_step_s_own_forward_wrote_bad_were_good_before_it(by_hand):
    held = by_hand.state(15, "norm.log_scale", phase="init")
    look = by_hand.found(15, facts={"began_bad": ["norm.log_scale"], "all_bad": 1})
    record = by_hand.run(by_hand.rank(0, held, by_hand.loss(15), look, Finished(15, 0, 14), world=1), world=1)
    report = analyse(record)
    assert report.verdict.last_finite_step == 14
    told = "The forward wrote it into weights, which stay so: norm.log_scale (now with NaN)."
    assert told in report.verdict.evidence


def test_of_state_that_is_looked_at_in_turns_an_update_before_may_have_stopped_the_weights(by_hand):
    report = with_bad_state(by_hand, infinite(by_hand, "exp_avg_sq"), since=4)
    (told,) = [one for one in report.findings if one.slug == "weights_stand_still"]
    assert "are 0 from step 12 on, if not before, and they" in told.text


@pytest.mark.parametrize("seen", [True, False])
def test_state_that_one_update_made_bad_is_not_gone_back_behind_further(by_hand, seen):
    tensors = (infinite(by_hand, "exp_avg_sq"),)
    bad = Harm("optimizer_state", 12, "optimizer", tensors, 2, 2, optimizer="Adam", since=4)
    site = Site(op="aten.addcmul_.default", file="train.py", line=3)
    look = Looked("found", "replay", 12, phase="optimizer", source="op", site=site, outputs=tensors,
                  inputs=(by_hand.fact(guessed=True),), facts={"reconstructed": True})  # fmt: skip
    events = (bad, *((look,) if seen else ()), Finished(20, 0, 4))
    report = analyse(by_hand.run(by_hand.rank(0, *events, world=1), world=1, ends=(by_hand.ended(0, 0),)))
    step, away = resume_at(report)
    assert (step, away) == (12 if seen else 5, False)
    when = "after step 4" if seen else "then"
    assert f"saved before step {step}; the optimizer's state was last seen finite {when}" in resume_words(report, step)
    assert report.verdict.last_finite_step == 4
    (told,) = [one.text for one in report.findings if one.slug == "weights_stand_still"]
    assert ("if not before" in told) is not seen


@pytest.mark.parametrize(
    ("optimizer", "between", "last"), [(None, "between steps 11 and 12", 10), ("SGD", "10 and 11", 10)]
)
def test_what_a_script_makes_by_hand_behind_a_backward_is_told_of_that_step(by_hand, optimizer, between, last):
    """Its weights are new tensors in each step, and are seen bad when the next backward begins."""
    site = Site(op="aten.div.Tensor", file="train.py", line=3, function="project")
    look = Looked("found", "replay", 11, phase="data", source="op", site=site, inputs=(by_hand.fact(zeros=3),),
                  outputs=(by_hand.fact(nan=3),))  # fmt: skip
    harm = by_hand.state(11, "w", since=10, optimizer=optimizer)
    verdict = analyse(by_hand.run(by_hand.rank(0, harm, look, Finished(12, 0, 10), world=1), world=1)).verdict
    assert verdict.summary.endswith(f"in project(), {between}" if optimizer is None else f"between steps {between}")
    assert verdict.last_finite_step == last


def nested(value):
    """What a script saves: of a model beside its optimizer, whose state is by number."""
    moments = {0: {"step": torch.tensor(7.0), "exp_avg_sq": torch.tensor([[1.0, value]])}}
    optimizer = {"state": moments, "param_groups": [{"lr": 0.1, "params": [0], "betas": (0.9, torch.tensor(0.99))}]}
    return {"model": {"weight": torch.ones(2)}, "optimizer": optimizer, "step": 7, "name": "net", "none": None}


def test_what_a_run_saved_itself_is_checked_however_deep_it_lies(by_hand):
    facts = {"file": "ck.pt", "saved_step": 0, "saved_at": "g.py:20", "loaded_at": "g.py:23",
             "weight": "exp_avg_sq of fc.weight", "weight_is": "optimizer state", "birth": "op"}  # fmt: skip
    moment = by_hand.fact("exp_avg_sq of fc.weight", nan=1)
    site = Site(op="aten.copy_.default", file="g.py", line=19, source="    moments[0, 3] = value")
    look = by_hand.found(0, method="record", phase="init", site=site, inputs=(), outputs=(moment,), facts=facts)
    harm = by_hand.state(0, "exp_avg_sq of fc.weight", what="optimizer_state", phase="init")
    verdict = analyse(by_hand.run(by_hand.rank(0, harm, look, world=1), world=1)).verdict
    (code,) = [one.code for one in verdict.suggestions if one.text.startswith("Check what is saved")]
    exec(code, {"torch": torch, "state": nested(1.0)})  # noqa: S102 - it is this test's
    with pytest.raises(AssertionError, match=r"\['optimizer'\]\['state'\]\[0\]\['exp_avg_sq'\]"):
        exec(code, {"torch": torch, "state": nested(math.nan)})  # noqa: S102 - it is this test's


def test_a_file_that_is_explained_to_be_checked_may_hold_more_than_tensors(tmp_path):
    (code,) = [one.code for one in bad_start.EXPLAIN[0].fix if one.code is not None]
    torch.save(nested(math.inf), tmp_path / "step.pt")
    names = {"torch": torch}
    exec(code.replace("step.pt", str(tmp_path / "step.pt")), names)  # noqa: S102 - it is this test's
    assert names["bad"] == ["state['optimizer']['state'][0]['exp_avg_sq']"]


def test_weights_of_an_optimizer_made_anew_that_the_script_wrote_over_ahead_of_its_step_were_finite_before(by_hand):
    """An average over ranks, say, behind which the next round makes its optimizer."""
    look = by_hand.found(3, phase="optimizer", facts={"began_bad": ["0.weight"], "all_bad": 1})
    began = by_hand.state(3, "0.weight", phase="init")
    events = began, by_hand.loss(3), by_hand.gradient(3), look, Stopping(3, "auto", "stop", "gradient")
    report = analyse(by_hand.run(by_hand.rank(0, *events, Finished(3, 0, 2), world=1), world=1))
    assert (report.verdict.last_finite_step, resume_at(report)) == (1, (2, False))


@pytest.mark.parametrize(
    ("size", "bad", "told"),
    [
        (1.98e38, (8, 16), "from a checkpoint in which mem.bank has its usual size"),
        (3.0, (8, 16), "from a checkpoint saved before step 136; the weights and buffers were finite until then"),
        (1.98e38, (16,), "from a checkpoint saved before step 136; the weights and buffers were finite until then"),
    ],
)  # fmt: skip
def test_a_buffer_that_grew_until_it_broke_is_no_good_in_the_checkpoint_before(by_hand, size, bad, told):
    grown = by_hand.fact(shape=(8, 16), min=-size, max=size, absmax=size)
    broken = by_hand.fact("mem.bank", shape=(8, 16), neginf=1)
    look = by_hand.found(136, inputs=(grown,), outputs=(by_hand.fact(shape=bad, neginf=1),))
    held = Harm("buffer", 136, "forward", (broken,), 1, 1, since=135, recoverable=False)
    report = analyse(by_hand.run(by_hand.rank(0, held, look, Finished(150, 0, 149), world=1), world=1))
    assert resume_words(report, 136).partition(":")[0] == told
