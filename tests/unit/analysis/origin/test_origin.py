"""Who is blamed: the earliest harm, the best founded claim, and never more than was seen."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.events import History, Looked, Site
from tests.unit.analysis.origin.told import origin


def test_the_rank_that_found_the_op_is_the_origin_and_its_peer_received(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.gradient(5), by_hand.finite(5)),
        by_hand.rank(1, by_hand.loss(5), by_hand.gradient(5), by_hand.found(5)),
    )
    report = analyse(record)
    found = report.verdict.origin
    assert (found.rank, found.ranks, found.step, found.phase, found.module) == (1, (1,), 5, "forward", "net.head")
    assert (found.op, found.line, found.kind) == ("aten.log.default", 12, "inf")
    assert (found.host, found.pid, found.gpu_uuid) == ("node0", 101, "GPU-1")
    assert (report.verdict.confidence, report.verdict.reproduced) == ("reproduced", True)
    assert [(one.ranks, one.what, one.via) for one in report.verdict.spread] == [
        ((0,), "gradient", "the gradient exchange")
    ]


def test_the_same_place_on_all_ranks_names_all_of_them(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.loss(5), by_hand.gradient(5), by_hand.found(5)) for n in (0, 1)))
    assert origin(record).ranks == (0, 1)


def test_each_rank_of_one_place_has_the_kind_that_it_made_itself(by_hand):
    """What is over 0 is infinite, and 0/0 is NaN."""
    looks = {0: {"posinf": 1}, 1: {"nan": 1}, 2: {"nan": 2, "posinf": 1}, 3: {"nan": 1}}
    found = {rank: by_hand.found(5, outputs=(by_hand.fact(**bad),)) for rank, bad in looks.items()}

    def told(*ranks):
        record = by_hand.run(*(by_hand.rank(rank, by_hand.loss(5), found[rank], world=4) for rank in ranks))
        return analyse(record).verdict.summary.partition(" at step")[0]

    assert told(0, 1) == "+Inf born on rank 0 (NaN on rank 1)"
    assert told(0, 1, 3) == "+Inf born on rank 0 (NaN on ranks 1 and 3)"
    assert told(1, 3) == "NaN born on ranks 1 and 3"
    assert told(1, 2) == "NaN born on ranks 1-2"


def test_two_places_in_one_step_blame_the_lower_rank_and_name_the_other(by_hand):
    elsewhere = by_hand.found(5, site=Site("net.tail", "Tail", "aten.exp.default"))
    record = by_hand.run(by_hand.rank(0, by_hand.found(5)), by_hand.rank(1, elsewhere))
    report = analyse(record)
    assert report.verdict.origin.ranks == (0,)
    assert "Rank 1 went bad in the same step by itself, in net.tail." in report.verdict.evidence


def test_another_place_that_is_known_by_its_number_is_told_with_its_class(by_hand):
    elsewhere = by_hand.found(5, site=Site("2", "GeM", "aten.exp.default"))
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.found(5)), by_hand.rank(1, elsewhere))).verdict.evidence
    assert "Rank 1 went bad in the same step by itself, in module 2 (GeM)." in told


@pytest.mark.parametrize("fed", [0, 1])
def test_a_rank_that_was_sent_infinities_did_not_go_bad_by_itself(fed, by_hand):
    turned = by_hand.found(5, site=Site("net.tail", "Tail", "aten.addmm.default"), facts={"fed": True})
    looks = [by_hand.found(5, micro_step=1)] * 2
    looks[fed] = turned
    verdict = analyse(by_hand.run(*(by_hand.rank(n, by_hand.gradient(5), one) for n, one in enumerate(looks)))).verdict
    assert verdict.origin.ranks == (1 - fed,)
    assert not any("by itself" in text for text in verdict.evidence)
    assert any(f"rank {fed}" in text.lower() and "bad already" in text for text in verdict.evidence)


def test_infinities_that_were_sent_are_told_where_nothing_else_is_known(by_hand):
    turned = by_hand.found(5, site=Site("net.tail", "Tail", "aten.addmm.default"), facts={"fed": True})
    found = origin(by_hand.run(by_hand.rank(0, by_hand.gradient(5)), by_hand.rank(1, by_hand.gradient(5), turned)))
    assert (found.ranks, found.module) == ((1,), "net.tail")


def test_what_may_hang_on_the_others_gradients_gives_way_to_a_rank_that_broke_by_itself(by_hand):
    own = by_hand.found(5, facts={"own_gradients": True, "reconstructed": True})
    broke = by_hand.found(5, site=Site("net.tail", "Tail", "aten.div.Tensor"))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), own), by_hand.rank(1, broke))).verdict
    assert (verdict.origin.ranks, verdict.confidence) == ((1,), "reproduced")
    assert not any("by itself" in text for text in verdict.evidence)
    alone = by_hand.run(by_hand.rank(0, by_hand.gradient(5), own), by_hand.rank(1, by_hand.gradient(5)))
    verdict = analyse(alone).verdict
    assert (verdict.origin.ranks, verdict.confidence) == ((0,), "inferred")
    assert any("this rank's own gradients" in text for text in verdict.evidence)


def test_an_update_that_breaks_by_zeros_of_the_others_alone_gives_way_to_one_that_breaks_whatever_they_hold(by_hand):
    at = {"phase": "optimizer", "facts": {"reconstructed": True, "parameters": ["w"], "without_peers": "zeros"}}
    other = {**at, "facts": {**at["facts"], "without_peers": "any"}, "site": Site(None, None, "aten.log.default")}
    record = by_hand.run(by_hand.rank(0, by_hand.found(5, **at)), by_hand.rank(1, by_hand.found(5, **other)))
    assert origin(record).ranks == (1,)


def test_bad_weights_are_not_taken_for_sent_by_a_rank_whose_fault_may_be_none(by_hand):
    bad = by_hand.fact("2.bias", nan=1)
    began = by_hand.found(6, phase="optimizer", source="parameter", inputs=(bad,))
    own = {"own_gradients": True, "reconstructed": True}
    made = by_hand.found(6, phase="optimizer", site=Site(None, None, "aten.log.default"), facts=own)
    assert origin(by_hand.run(by_hand.rank(0, by_hand.loss(6), began), by_hand.rank(1, made))).ranks == (0,)


def test_weights_that_another_rank_had_sent_are_no_fault_of_the_rank_that_began_with_them(by_hand):
    bad = by_hand.fact("2.bias", nan=1)
    began = by_hand.found(6, phase="optimizer", source="parameter", inputs=(bad,))
    made = by_hand.found(6, phase="optimizer", site=Site(None, None, "aten.log.default"))
    record = by_hand.run(by_hand.rank(0, by_hand.loss(6), began), by_hand.rank(1, by_hand.loss(6), made))
    verdict = analyse(record).verdict
    assert verdict.origin.ranks == (1,)
    assert not any("by itself" in text for text in verdict.evidence)
    assert "Rank 0 began the step with bad weights too: that they came from rank 1 is inferred." in verdict.evidence


def test_an_earlier_micro_step_goes_before_a_lower_rank(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.found(5, micro_step=1)), by_hand.rank(1, by_hand.found(5)))
    assert origin(record).ranks == (1,)


def test_a_micro_step_not_told_is_the_first_in_forward_and_the_last_in_backward(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.found(5, micro_step=1)), by_hand.rank(1, by_hand.found(5, micro_step=None))
    )
    assert origin(record).ranks == (1,)
    record = by_hand.run(
        by_hand.rank(0, by_hand.found(5, micro_step=None, phase="backward")),
        by_hand.rank(1, by_hand.found(5, micro_step=1, phase="backward")),
    )
    assert origin(record).ranks == (1,)


def test_forward_goes_before_backward(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.found(5, phase="backward")), by_hand.rank(1, by_hand.found(5)))
    assert (origin(record).ranks, origin(record).phase) == ((1,), "forward")


def test_without_a_look_a_loss_on_one_rank_only_is_an_inference(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(5)), by_hand.rank(1, by_hand.loss(5), by_hand.gradient(5)))
    verdict = analyse(record).verdict
    assert (verdict.origin.ranks, verdict.origin.phase, verdict.confidence) == ((1,), "loss", "inferred")
    assert verdict.summary == "NaN loss on rank 1 at step 5"
    assert verdict.reproduced is None
    assert verdict.spread[0].ranks == (0,)
    assert verdict.spread[0].via is None


def test_a_loss_on_every_rank_is_observed_on_all(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.loss(5), by_hand.gradient(5)) for n in (0, 1)))
    verdict = analyse(record).verdict
    assert (verdict.origin.ranks, verdict.confidence) == ((0, 1), "observed")


def test_bad_gradients_everywhere_never_name_a_rank(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.gradient(5)) for n in (0, 1)))
    verdict = analyse(record).verdict
    assert verdict.origin.ranks == (0, 1)
    assert verdict.summary == "NaN gradients on ranks 0-1 at step 5; which rank made them is not known"
    assert verdict.confidence == "observed"


def test_a_bad_gradient_shard_on_one_rank_does_not_blame_it(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(5)), by_hand.rank(1, steps=6))
    assert "not known" in analyse(record).verdict.summary


def test_the_only_rank_needs_no_deduction(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.gradient(5), world=1), world=1)
    verdict = analyse(record).verdict
    assert (verdict.summary, verdict.confidence) == ("NaN gradients on rank 0 at step 5", "observed")


def test_a_clean_replay_clears_a_rank_and_leaves_the_other(by_hand):
    refused = Looked("refused", "replay", 5, reason="it does not fit")
    record = by_hand.run(
        by_hand.rank(0, by_hand.gradient(5), by_hand.finite(5)), by_hand.rank(1, by_hand.gradient(5), refused)
    )
    verdict = analyse(record).verdict
    assert (verdict.origin.ranks, verdict.confidence, verdict.cause) == ((1,), "inferred", "received_nonfinite")


def test_a_clean_forward_does_not_clear_a_rank_of_its_backward(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.gradient(5), by_hand.finite(5, "modules")), by_hand.rank(1, by_hand.gradient(5))
    )
    assert "not known" in analyse(record).verdict.summary


def test_a_rank_that_never_spoke_is_suspected_when_all_others_replay_clean(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.gradient(5), by_hand.finite(5), world=3) for n in (0, 1)), world=3)
    verdict = analyse(record).verdict
    assert (verdict.origin.ranks, verdict.origin.host, verdict.confidence) == ((2,), None, "inferred")


def test_a_replay_that_is_clean_everywhere_is_told_as_not_reproduced(by_hand):
    record = by_hand.run(*(by_hand.rank(n, by_hand.loss(5), by_hand.finite(5)) for n in (0, 1)))
    verdict = analyse(record).verdict
    assert verdict.reproduced is False
    assert verdict.suggestions[0].text.startswith("It did not show a second time")
    assert verdict.confidence == "observed"


def test_the_earliest_step_wins_and_later_harm_is_spread(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.loss(8), by_hand.gradient(8)),
        by_hand.rank(1, by_hand.loss(5), by_hand.state(5, since=4), by_hand.loss(6)),
    )
    verdict = analyse(record).verdict
    assert (verdict.origin.rank, verdict.origin.step) == (1, 5)
    assert [(one.ranks, one.step, one.what) for one in verdict.spread] == [
        ((1,), 5, "parameter"), ((0,), 8, "loss"), ((0,), 8, "gradient"),
    ]  # fmt: skip


def test_wall_clock_never_decides(by_hand):
    late = by_hand.rank(0, *[by_hand.finite(1)] * 50, by_hand.loss(4))
    early = by_hand.rank(1, by_hand.loss(5))
    assert origin(by_hand.run(late, early)).rank == 0


def test_an_earlier_attempt_goes_before_a_later_one(by_hand):
    first = by_hand.rank(0, by_hand.loss(50), world=1)
    second = by_hand.rank(0, by_hand.loss(2), world=1, attempt=1)
    assert origin(by_hand.run(first, second, world=1)).step == 50


def test_a_bad_batch_is_the_phase_data(by_hand):
    look = by_hand.found(5, source="input", site=None, inputs=(by_hand.fact("x", nan=4),), outputs=())
    verdict = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict
    assert (verdict.origin.phase, verdict.cause) == ("data", "data_nonfinite")
    assert verdict.summary == "NaN in the data of rank 0 at step 5: input x"


@pytest.mark.parametrize(
    ("phase", "step", "function", "place"),
    [
        ("data", 13, "days", "days(), between steps 12 and 13"),
        ("data", 13, "<module>", "code between steps 12 and 13"),
        ("data", 0, "days", "days(), before the model's call"),
        ("optimizer", 11, "update_average", "update_average(), around the optimizer's step"),
        ("optimizer", 11, None, "code around the optimizer's step"),
    ],
)
def test_outside_of_all_modules_the_function_is_named_and_when_it_ran(by_hand, phase, step, function, place):
    site = Site(op="aten.log.default", file="train.py", line=12, source="y = x.log()", function=function)
    look = by_hand.found(step, phase=phase, site=site)
    record = by_hand.run(by_hand.rank(0, by_hand.loss(step), look, world=1), world=1)
    assert analyse(record).verdict.summary == f"-Inf born on rank 0 at step {step} in {place}"


def test_what_left_the_weights_bad_that_a_step_began_with_ran_between_two_steps(by_hand):
    site = Site(op="aten.div.Tensor", file="train.py", line=19, source="return s / n", function="average")
    look = by_hand.found(5, phase="optimizer", site=site, facts={"began_bad": ["0.weight"], "all_bad": 4})
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.summary == "-Inf born on rank 0 at step 5 in average(), between steps 4 and 5"


@pytest.mark.parametrize(("of_loss", "told"), [(2, None), (1, 1)])
def test_a_micro_step_is_told_where_forward_and_backward_agree_on_it(by_hand, of_loss, told):
    """A pipeline's schedule runs some forwards, or all, before the first backward call counts."""
    harm = replace(by_hand.loss(3, micro_step=of_loss), total=4)
    verdict = analyse(by_hand.run(by_hand.rank(0, harm, by_hand.found(3, micro_step=1), world=1), world=1)).verdict
    assert verdict.origin.micro_step == told
    assert ("micro-step" in verdict.summary) is (told is not None)


def test_a_clean_look_says_nothing_about_a_weight_that_was_seen_bad(by_hand):
    record = by_hand.run(
        by_hand.rank(0, by_hand.state(0, "emb.weight", phase="init"), by_hand.finite(0), world=1), world=1
    )
    assert analyse(record).verdict.reproduced is None


def test_where_the_op_really_runs_is_evidence(by_hand):
    look = by_hand.found(5, facts={"library": "torch/nn/functional.py:9", "recompute": True, "came_as": "Set[5]"})
    evidence = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict.evidence
    assert "The op runs inside a library, at torch/nn/functional.py:9." in evidence
    look = by_hand.found(5, facts={"called_at": "train.py:9"})
    called = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict.evidence
    assert "The script comes to this line of a library from train.py:9." in called
    assert "It was seen in the recomputation of an activation checkpoint." in evidence
    assert "It came to this step as Set[5]." in evidence


def test_a_look_at_a_parameter_takes_the_phase_from_its_harm(by_hand):
    look = by_hand.found(
        0, source="parameter", site=Site(op="aten.embedding.default"), inputs=(by_hand.fact("emb.weight", nan=1),)
    )
    record = by_hand.run(by_hand.rank(0, by_hand.state(0, "emb.weight", phase="init"), look, world=1), world=1)
    assert (origin(record).phase, origin(record).module) == ("init", "emb")


@pytest.mark.parametrize(
    ("value", "said", "kind"),
    [(math.nan, "NaN", "nan"), (math.inf, "+Inf", "inf"), (-math.inf, "-Inf", "inf")],
)
def test_nan_and_both_infinities_are_told_apart(by_hand, value, said, kind):
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5, value=value), world=1), world=1)).verdict
    assert verdict.summary == f"{said} loss on rank 0 at step 5"
    assert verdict.origin.kind == kind


def test_a_resumed_run_tells_its_global_step(by_hand):
    record = by_hand.run(by_hand.rank(0, by_hand.loss(5, global_step=905), world=1), world=1)
    assert analyse(record).verdict.summary == "NaN loss on rank 0 at step 5 (global step 905)"


@pytest.mark.parametrize(
    ("turns", "summary"),
    [((0,) * 60 + (1,) * 30, "NaN loss on rank 0 at step 30 of of_g (step 60 of the run)"),
     ((0, 0, 1) * 30, "NaN loss on rank 0 at step 60 (step 30 of of_g)")],
)  # fmt: skip
def test_where_the_optimizer_that_is_ahead_rests_the_count_of_the_other_leads(by_hand, turns, summary):
    loss = by_hand.loss(60, own_step=30, optimizer="Adam", names={"optimizer": "of_g"})
    steps = tuple(turns[:at].count(0) for at in range(len(turns)))
    rows = (1.0,) * len(turns)
    past = History(steps, rows, rows, rows, (None,) * len(turns), optimizer=turns)
    verdict = analyse(by_hand.run(by_hand.rank(0, loss, past, world=1), world=1)).verdict
    assert (verdict.summary, verdict.origin.step) == (summary, 60)


def test_the_step_by_the_count_of_its_own_optimizer_is_told_where_another_is_ahead(by_hand):
    loss = by_hand.loss(8, own_step=7, optimizer="Adam", names={"optimizer": "of_g"})
    verdict = analyse(by_hand.run(by_hand.rank(0, loss, world=1), world=1)).verdict
    assert verdict.summary == "NaN loss on rank 0 at step 8 (step 7 of of_g)"
    assert "Steps are counted by the optimizer that is ahead; of_g had made 7 updates." in verdict.evidence
    for names in ({}, {"optimizer": "o"}):  # the one letter of a loop says nothing
        unnamed = analyse(by_hand.run(by_hand.rank(0, replace(loss, names=names), world=1), world=1)).verdict
        assert unnamed.summary.endswith("(step 7 of its Adam)")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "by itself"),
        ({"facts": {"arg1": 2.0}}, "by itself"),
        ({"facts": {"arg1": "nan"}}, "too, by what it was given: from where is not known"),
        ({"source": "outside"}, "too, by what it was given: from where is not known"),
        (
            {"facts": {"brought": True, "dataset": "Rows", "dataset_index": 7}},
            "too, by what came with Rows[7]",
        ),
        ({"phase": "optimizer", "facts": {"parameters": ["fc.weight"]}}, "too, in its update"),
        (
            {"phase": "optimizer", "method": "tape", "facts": {"written_in_place": ".data"}},
            "too, by what it wrote in line 30: whether that came from another rank is not known",
        ),
    ],
)
def test_a_rank_is_not_said_to_go_bad_by_itself_of_what_came_from_somewhere(by_hand, more, told):
    own = by_hand.found(5)
    other = replace(own, **{"facts": {}, **more}, site=replace(own.site, module="tail", line=30))
    logs = by_hand.rank(0, by_hand.loss(5), own), by_hand.rank(1, by_hand.loss(5), other)
    said = [text for text in analyse(by_hand.run(*logs)).verdict.evidence if text.startswith("Rank 1 went bad")]
    assert said == [f"Rank 1 went bad in the same step {told}, in tail."]


def test_strikes_of_one_device_are_counted(by_hand):
    clean = [replace(by_hand.finite(step), facts={"complete": True}) for step in (3, 7)]
    record = by_hand.run(
        by_hand.rank(0, *map(by_hand.finite, (3, 7))),
        by_hand.rank(1, by_hand.loss(3), clean[0], by_hand.loss(7), clean[1]),
    )
    verdict = analyse(record).verdict
    assert (verdict.cause, verdict.reproduced, verdict.origin.ranks) == ("hardware_corruption", False, (1,))
    assert any("struck 2 times in this run, at steps 3, 7" in text for text in verdict.evidence)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_only_a_gpu_is_asked_by_its_own_tool_for_errors_of_its_memory(by_hand, device):
    clean = Looked("finite", "replay", 5, facts={"complete": True})
    record = by_hand.run(by_hand.rank(0, replace(by_hand.loss(5), device=device), clean, world=1), world=1)
    codes = [one.code or "" for one in analyse(record).verdict.suggestions]
    assert any("dmesg" in code for code in codes)
    assert any("nvidia-smi" in code for code in codes) is (device != "cpu")


@pytest.mark.parametrize("outcome", ["refused", "failed"])
def test_a_step_that_could_not_be_run_again_has_a_way_to_watch_it(by_hand, outcome):
    look = Looked(outcome, "replay", 5, reason="no room")
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert verdict.suggestions[-1].code == "nandiag run --level op"


@pytest.mark.parametrize("led_back", [0, 1])
def test_a_rank_that_was_given_a_bad_number_goes_behind_the_one_that_made_it(led_back, by_hand):
    """A rate that is made of what all ranks gave: NaN on both, and led back to a line on the one that computed it."""
    update = Site("", "Net", "aten.add_.Tensor", file="train.py", line=42)
    given = by_hand.found(5, phase="optimizer", site=update, facts={"alpha": "nan"})
    made = by_hand.found(5, phase="optimizer", facts={"alpha": "nan", "number": True})
    looks = [given, made] if led_back else [made, given]
    verdict = analyse(by_hand.run(*(by_hand.rank(n, by_hand.state(5), one) for n, one in enumerate(looks)))).verdict
    assert (verdict.origin.ranks, verdict.origin.line) == ((led_back,), 12)


@pytest.mark.parametrize(
    ("file", "said"), [("<eval_with_key>.0 from train.py:7 in forward", True), ("train.py", False)]
)
def test_a_line_that_fx_made_is_said_to_be_so(by_hand, file, said):
    found = by_hand.found(5)
    look = replace(found, site=replace(found.site, file=file))
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look), world=1)).verdict.evidence
    assert any(one.startswith("torch.fx made this line") for one in told) is said


@pytest.mark.parametrize(
    ("function", "what", "place"),
    [
        ("generate", "output", "generate(), behind the model's call"),
        ("<module>", "output", "code behind the model's call"),
        ("generate", "loss", "the loss code"),
    ],
)
def test_where_no_loss_is_made_there_is_no_loss_code(by_hand, function, what, place):
    look = by_hand.found(5, phase="loss", site=Site(op="aten.log.default", function=function, file="train.py", line=3))
    record = by_hand.run(by_hand.rank(0, replace(by_hand.loss(5), what=what), look, world=1), world=1)
    assert analyse(record).verdict.summary.endswith(f"in {place}")


@pytest.mark.parametrize("within", [False, True])
def test_what_the_step_itself_wrote_is_nothing_that_it_began_with(by_hand, within):
    site = Site(op="aten.div_.Tensor", file="train.py", line=19, source="self.gain.data.div_(x)", function="forward")
    facts = {"began_bad": ["gain"], "all_bad": 1, **({"written_in_step": True} if within else {})}
    look = by_hand.found(5, phase="forward", site=site, facts=facts)
    report = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1))
    assert any(one.slug == "spoiled_between" for one in report.findings) is not within


def test_what_an_op_may_have_written_unsaid_is_not_called_reproduced(by_hand):
    site = Site(op="aten.mean.default", file="train.py", line=19, source="h = x * STATE.mean()", function="forward")
    look = replace(by_hand.found(5, site=site, facts={"unsaid": ["mine.scale.default"]}), source="outside")
    verdict = analyse(by_hand.run(by_hand.rank(0, look, world=1), world=1)).verdict
    assert verdict.confidence != "reproduced"
    assert any("mine.scale.default ran in the step" in one for one in verdict.evidence)
