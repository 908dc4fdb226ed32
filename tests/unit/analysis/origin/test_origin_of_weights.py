"""Weights, buffers and optimizer state that went bad: when, by what, and on which rank."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import Sent, Site
from tests.unit.analysis.origin.told import origin


@pytest.mark.parametrize("phase", ["init", "forward"])
def test_a_parameter_nobody_saw_finite_was_bad_before_the_first_step(by_hand, phase):
    record = by_hand.run(
        *(by_hand.rank(n, by_hand.state(0, "emb.weight", phase=phase), by_hand.loss(0)) for n in (0, 1))
    )
    verdict = analyse(record).verdict
    assert (verdict.origin.phase, verdict.origin.module, verdict.origin.ranks) == ("init", "emb", (0, 1))
    assert verdict.summary == "NaN in parameter emb.weight on ranks 0-1 before the first step"
    assert verdict.cause == "init_nonfinite"
    assert verdict.last_finite_step is None


def test_a_parameter_gone_bad_with_finite_gradients_is_the_update(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.state(7, since=6)) for n in (0, 1)))
    verdict = analyse(record).verdict
    assert (verdict.origin.phase, verdict.origin.step, verdict.last_finite_step) == ("optimizer", 7, 6)
    assert verdict.summary == "NaN in parameter fc.weight on ranks 0-1 after the update of step 7"
    assert "The losses and gradients of this step were finite: the update itself made it." in verdict.evidence


def test_what_the_script_wrote_beside_the_update_is_none_of_that(by_hand):
    look = by_hand.found(7, phase="optimizer", facts={"reconstructed": True, "beside_update": True})
    look = replace(look, site=replace(look.site, module=None, module_class=None))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.state(7, since=6), look, world=1))).verdict
    assert verdict.summary == "-Inf born on rank 0 at step 7 in code around the optimizer's step"
    assert any(one.endswith("were finite: the script wrote it, beside the update.") for one in verdict.evidence)


def test_a_parameter_written_bad_behind_the_last_update_is_no_update_s(by_hand):
    record = by_hand.run(by_hand.rank(0, replace(by_hand.state(7, since=6), behind=True)))
    verdict = analyse(record).verdict
    assert verdict.summary == "NaN in parameter fc.weight on rank 0, written behind the update of step 6"
    assert "the update itself made it" not in " ".join(verdict.evidence)
    assert "behind its last update that writes into fc.weight" in verdict.suggestions[0].text


@pytest.mark.parametrize(
    ("between", "when"),
    [((12, 13), "in replay 13 of 20."), ((8, 12), "between replay 8 and 12 of 20."), ((0, 20), ""), ((7,), "")],
)
def test_a_parameter_gone_bad_where_cuda_graphs_ran_behind_the_last_update_is_no_line_of_the_script_s(
    by_hand, between, when
):
    harm = replace(by_hand.state(3, since=2), behind=True, replays=20, bad_between=between)
    verdict = analyse(by_hand.run(by_hand.rank(0, harm))).verdict
    assert verdict.summary.endswith("on rank 0, behind the update of step 2, when a CUDA graph was replayed")
    told = " ".join(verdict.evidence)
    assert "A CUDA graph was replayed 20 times since the last update that nandiag saw" in told
    assert "own code" not in told
    assert ("It went bad" in told) == bool(when)
    assert when in told
    assert [one.text.partition(":")[0] for one in verdict.suggestions] == ["Run the script without the CUDA graph"]


@pytest.mark.parametrize(("what", "via"), [("buffer", "the bad buffer"), ("parameter", "the bad weights")])
def test_what_a_later_loss_came_through_is_called_what_it_is(by_hand, what, via):
    harms = by_hand.state(5, what=what, phase="forward"), by_hand.loss(6)
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.found(5), *harms))).verdict
    assert [one.via for one in verdict.spread if one.what == "loss"] == [via]


def test_a_parameter_gone_bad_after_its_gradient_is_spread(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.gradient(7), by_hand.state(7, since=6)) for n in (0, 1)))
    verdict = analyse(record).verdict
    assert verdict.origin.phase == "backward"
    assert [(one.what, one.via) for one in verdict.spread] == [("parameter", "the optimizer's update")]


def test_a_buffer_gone_bad_in_the_forward_of_a_bad_loss_is_a_symptom(by_hand):
    buffer = by_hand.state(5, "bn.running_mean", what="buffer", phase="forward", since=4)
    record = by_hand.run(by_hand.rank(0, by_hand.loss(5), buffer, world=1), world=1)
    assert origin(record).phase == "loss"


def test_a_buffer_gone_bad_alone_is_the_origin(by_hand):
    buffer = by_hand.state(5, "bn.running_mean", what="buffer", phase="forward", since=4)
    record = by_hand.run(by_hand.rank(0, buffer, world=1), world=1)
    assert analyse(record).verdict.summary == "NaN in buffer bn.running_mean on rank 0 at step 5"
    assert origin(record).module == "bn"


def test_a_buffer_tells_which_rank_when_gradients_cannot(by_hand):
    buffer = by_hand.state(5, "bn.running_mean", what="buffer", phase="forward", since=4)
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(5)), by_hand.rank(1, by_hand.gradient(5), buffer))
    verdict = analyse(record).verdict
    assert (verdict.origin.ranks, verdict.confidence) == ((1,), "inferred")


def test_a_weight_that_ranks_began_with_is_of_the_rank_that_saw_its_birth(by_hand):
    bad = by_hand.fact("bn.running_var", nan=1)
    told = {"weight": "bn.running_var", "birth": "file", "file": "old.pt"}
    born = by_hand.found(
        0, method="record", phase="checkpoint", source="outside", inputs=(), outputs=(bad,), facts=told
    )
    used = by_hand.found(0, phase="init", source="buffer", inputs=(bad,), outputs=(), facts={})
    other = by_hand.found(0, phase="init", source="buffer", inputs=(by_hand.fact("fc.bias", nan=1),), facts={})
    record = by_hand.run(by_hand.rank(0, used), by_hand.rank(1, born), by_hand.rank(2, other), world=3)
    verdict = analyse(record).verdict
    assert (list(verdict.origin.ranks), verdict.cause) == ([2], "init_nonfinite")  # its own weight, of unknown birth
    record = by_hand.run(by_hand.rank(0, used), by_hand.rank(1, born))
    verdict = analyse(record).verdict
    assert (list(verdict.origin.ranks), verdict.cause) == ([1], "checkpoint_corruption")
    assert any("Rank 0 held it too" in text for text in verdict.evidence)
    assert not any("by itself" in text for text in verdict.evidence)


def test_a_rank_that_was_given_the_weight_is_told_by_the_way_it_came_alone(by_hand):
    bad = by_hand.fact("bn.running_var", nan=1)
    told = {"weight": "bn.running_var", "birth": "file", "file": "old.pt"}
    born = by_hand.found(
        0, method="record", phase="checkpoint", source="outside", inputs=(), outputs=(bad,), facts=told
    )
    used = by_hand.found(0, phase="init", source="buffer", inputs=(bad,), outputs=(), facts={})
    buffer = by_hand.state(0, "bn.running_var", what="buffer", phase="forward", since=-1)
    call = Site(file="train.py", line=27, source="dist.broadcast(t, src=0)", op="c10d::broadcast_.default")
    sent = Sent("broadcast", (0, 1), 5, "0#0", replace(born, phase="data"), call)
    verdict = analyse(by_hand.run(by_hand.rank(0, sent, buffer, born), by_hand.rank(1, buffer, used))).verdict
    assert verdict.cause == "checkpoint_corruption"
    assert any(one.ranks == (1,) and "broadcast in line 27" in (one.via or "") for one in verdict.spread)
    assert not any("held it too" in text for text in verdict.evidence)


def test_optimizer_state_is_told_by_its_own_name(by_hand):
    bad = by_hand.state(3, "exp_avg_sq of fc.weight", what="optimizer_state", since=2)
    record = by_hand.run(by_hand.rank(0, bad, world=1), world=1)
    assert analyse(record).verdict.summary == (
        "NaN in optimizer state exp_avg_sq of fc.weight on rank 0 after the update of step 3"
    )
    assert origin(record).module == "fc"


@pytest.mark.parametrize("since", [None, -1, 1])
def test_state_that_was_looked_at_in_turns_is_not_dated_to_the_step(since, by_hand):
    bad = by_hand.state(3, "exp_avg_sq of fc.weight", what="optimizer_state", since=since)
    evidence = analyse(by_hand.run(by_hand.rank(0, bad, world=1), world=1)).verdict.evidence
    assert any("an update before this one" in text for text in evidence)
    assert not any("of this step were finite" in text for text in evidence)


def test_a_parameter_that_no_module_is_known_to_hold_has_no_module(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.state(3, "param_groups[0].params[1]", since=2), world=1), world=1)
    assert origin(record).module is None


def test_a_weight_of_one_rank_that_its_update_does_not_explain(by_hand):
    again = replace(by_hand.finite(7), phase="optimizer")
    harm = by_hand.state(7, "0.weight", since=6)
    verdict = analyse(by_hand.run(by_hand.rank(0, steps=9), by_hand.rank(1, harm, again, steps=9))).verdict
    assert (verdict.cause, verdict.origin.ranks) == ("hardware_corruption", (1,))
    assert any("on stand-ins for what it had overwritten, is finite too" in text for text in verdict.evidence)


def by_hand_updated(by_hand, **harm):
    look = by_hand.found(
        20, source="parameter", inputs=(by_hand.fact("b.weight", nan=16),), outputs=(), phase="forward",
        site=Site("b", "Linear", "aten.t.default", file="train.py", line=13, column=(8, 17), source="        self.b(h)"
        ),
    )  # fmt: skip
    seen = by_hand.state(20, "b.weight", since=19, **harm), look
    return analyse(by_hand.run(by_hand.rank(0, *seen, world=1), world=1)).verdict


@pytest.mark.parametrize(("optimizer", "said"), [(None, "after backward(): a division"), ("SGD", "SGD's settings")])
def test_the_first_use_of_a_bad_weight_is_no_reproduction_of_what_made_it(by_hand, optimizer, said):
    verdict = by_hand_updated(by_hand, optimizer=optimizer)
    assert (verdict.confidence, verdict.reproduced, verdict.mechanism) == ("observed", None, None)
    assert verdict.evidence[0] == "not at fault: b.weight was bad before"
    assert said in verdict.suggestions[0].text
    assert "b.weight" in verdict.suggestions[0].text
    assert verdict.suggestions[1].code == "nandiag run --level op"


def test_a_weight_that_an_optimizer_wrote_between_two_evaluations_is_told_as_within_its_step(by_hand):
    look = by_hand.found(
        0, source="parameter", inputs=(by_hand.fact("b.weight", nan=16),), outputs=(), phase="optimizer",
        site=Site("b", "Linear", None, file="train.py", line=13, column=(0, 17), source="opt.step(closure)"),
        facts={"between_evaluations": "LBFGS", "first_used_by": "aten.t.default"},
    )  # fmt: skip
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(0), look, world=1), world=1)).verdict
    assert verdict.summary == "NaN in parameter b.weight on rank 0 within the update of step 0"
    assert verdict.evidence[0] == "LBFGS wrote it within this step: at an evaluation of its closure it was finite"
    assert verdict.cause != "init_nonfinite"
    assert verdict.suggestions[0].text.startswith("Look at the settings of LBFGS")
