"""Gradients that were finite on each rank before their exchange: the exchange is named, never the hardware."""

import math
from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import collective_overflow, explain
from nandiag.events import History, Looked, Site, Skipped, TensorFact

PLACE = Site(op="c10d.allreduce_.default", file="train.py", line=32, function="share", source="dist.all_reduce(g)")


def exchanged(size, *, collective="all_reduce", by="script"):
    facts = {"complete": False, "collective": collective, "by": by, "local_gradient_absmax": size}
    site = PLACE if by == "script" else None
    return Looked("finite", "replay", 5, phase="collective", site=site, facts=facts, reason="finite on this rank")


@pytest.fixture
def verdict_of(by_hand):
    def verdict(*looks):
        gradient = replace(by_hand.gradient(5), tensors=(by_hand.fact("fc.weight", posinf=2),))
        return analyse(by_hand.run(*(by_hand.rank(n, gradient, look) for n, look in enumerate(looks)))).verdict

    return verdict


def test_a_sum_over_ranks(verdict_of):
    verdict = verdict_of(exchanged(56_000.0), exchanged(55_000.0))
    origin = verdict.origin
    assert (verdict.cause, verdict.mechanism) == ("collective_overflow", "collective_overflow")
    assert (origin.phase, origin.ranks, origin.op, origin.line) == ("collective", (0, 1), "c10d.allreduce_.default", 32)
    assert (verdict.confidence, verdict.reproduced) == ("inferred", None)
    assert origin.outputs_are == "gradient"  # which is none of what the op was given
    assert any("up to 56000 on rank 0, 55000 on rank 1" in text for text in verdict.evidence)
    assert "divide before the sum" in verdict.suggestions[1].text


def test_what_was_exchanged_in_half_precision_is_sure_and_the_scale_of_the_loss_to_blame(verdict_of):
    """A loss scale of the script's own has doubled until the sum over ranks left the dtype."""
    known = {"exchanged_dtype": "float16", "loss_factor": 65536.0, "loss_factor_at": ["train.py", 30]}
    looks = [exchanged(size) for size in (41_120.0, 34_656.0)]
    verdict = verdict_of(*(replace(one, facts={**one.facts, **known}) for one in looks))
    assert verdict.evidence[0] == "local gradients go to 41120, and 2 ranks add theirs up; float16 ends at 65504"
    first = verdict.suggestions[0].text
    assert first.startswith("The script multiplies its loss by 65536 before backward() at train.py:30")
    assert "Reduce in float32" in verdict.suggestions[1].text


def test_of_a_rank_that_was_not_looked_at_no_gradient_is_called_finite(by_hand):
    """Each rank asks for Inf before the exchange: the one whose gradients are bad leaves its update out."""
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), exchanged(632.0)), by_hand.rank(1))).verdict
    assert verdict.summary.endswith("gradients at step 5 on rank 0, finite there before their exchange (all_reduce)")
    assert not any("each rank" in text for text in verdict.evidence)
    assert "Run again without the exchange, the gradients of rank 0 are finite: up to 632." in verdict.evidence
    assert any(text.startswith("Rank 1 was not looked at: no update of it") for text in verdict.evidence)
    assert "behind the exchange" in verdict.suggestions[0].text
    assert "ReduceOp.MAX" in verdict.suggestions[0].code


def test_a_rank_whose_own_look_is_missing_is_told_and_was_no_silent_one(by_hand):
    ranks = by_hand.rank(0, by_hand.gradient(5), exchanged(632.0)), by_hand.rank(1, by_hand.gradient(5))
    verdict = analyse(by_hand.run(*ranks)).verdict
    assert "on ranks 0-1, finite on rank 0 before their exchange" in verdict.summary
    told = [text for text in verdict.evidence if "was not looked at" in text]
    assert told == ["Rank 1 was not looked at: it may have put bad values into the exchange itself."]
    assert not any("ReduceOp.MAX" in (one.code or "") for one in verdict.suggestions)


def test_one_rank_alone_is_the_culprit(verdict_of):
    verdict = verdict_of(exchanged(120.0, collective="fp16_compress_hook", by="comm_hook"),
                         exchanged(180_161.0, collective="fp16_compress_hook", by="comm_hook"))  # fmt: skip
    assert (verdict.origin.ranks, verdict.origin.file) == ((1,), None)
    assert verdict.evidence[0] == "the local gradients of rank 1 go to 180161; float16 ends at 65504"
    assert "Rank 0 received the damage." in verdict.evidence
    assert [(one.ranks, one.via) for one in verdict.spread] == [((0,), "the gradient exchange")]


def test_an_update_that_is_finite_when_made_again_does_not_stand_for_the_exchange(by_hand):
    gradient = replace(by_hand.gradient(5), tensors=(by_hand.fact("fc.weight", posinf=2),))
    update = Looked("finite", "replay", 5, phase="optimizer", reason="made again, the update is finite")
    events = gradient, exchanged(1.5, collective="mine", by="comm_hook"), update
    verdict = analyse(by_hand.run(*(by_hand.rank(n, *events) for n in range(2)))).verdict
    assert verdict.origin.phase == "collective"
    assert "finite before their exchange (mine)" in verdict.summary


def test_a_rank_that_received_in_a_hook_called_again_leaves_the_exchange_named(by_hand):
    gradient = replace(by_hand.gradient(5), tensors=(by_hand.fact("fc.weight", nan=2),))
    given = Looked("found", "replay", 5, phase="collective", source="received", facts={"comm_hook": "mine"})
    looks = exchanged(1.5, collective="mine", by="comm_hook"), given
    verdict = analyse(by_hand.run(*(by_hand.rank(n, gradient, one) for n, one in enumerate(looks)))).verdict
    assert verdict.origin.phase == "collective"
    assert "finite before their exchange (mine)" in verdict.summary


def in_hook(dtype, source, hook="compress"):
    site = Site(op="aten._to_copy.default", file="train.py", line=9, function=hook, source=source)
    facts = {"comm_hook": hook, "float64_finite": True, "float64_absmax": 117_238.0}
    given = (TensorFact("float32", (8,), 8, min=-117_238.0, max=1.0, absmax=117_238.0),)
    outputs = (TensorFact(dtype, (8,), 8, posinf=1),)
    return Looked("found", "replay", 5, phase="collective", source="op", site=site, inputs=given, outputs=outputs,
                  facts=facts)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("half = buffer.to(torch.float16)", "half = buffer.to(torch.bfloat16)"),
        ("half = bucket.buffer().half()", "half = bucket.buffer().bfloat16()"),
        ("model.register_comm_hook(None, hooks.fp16_compress_hook)",
         "model.register_comm_hook(None, hooks.bf16_compress_hook)"),
        ("x = narrow(buffer)", "default_hooks.bf16_compress_hook"),
    ],
)  # fmt: skip
def test_a_hook_that_leaves_half_precision_is_named_with_a_mend_of_its_own_line(line, mended, by_hand):
    harm = by_hand.gradient(5, device="cuda:0")
    run = by_hand.run(by_hand.rank(0, harm, in_hook("float16", line)), by_hand.rank(1))
    verdict = analyse(run).verdict
    assert (verdict.cause, verdict.mechanism) == ("collective_overflow", "overflow")
    assert verdict.suggestions[0].code == mended
    assert verdict.summary == "+Inf born on rank 0 at step 5 in the communication hook compress"


@pytest.mark.parametrize(
    ("norms", "losses", "fed"),
    [
        ([4.0, 12.0, 36.0, 107.0, 320.0], [0.7, 0.7, 1.0, 1.1, 1.5], True),
        ([4.0, 12.0, 36.0, 107.0, 320.0], [0.7, 7.0, 60.0, 600.0, 5000.0], False),
        ([4.0, 4.1, 3.9, 4.0, 320.0], [0.7, 0.7, 1.0, 1.1, 1.5], False),
    ],
    ids=["fed", "diverged", "leapt"],
)
def test_gradients_that_a_hook_makes_grow_while_the_loss_does_not_are_fed_back_by_it(by_hand, norms, losses, fed):
    past = History(step=(*range(5),), loss=(*losses,), grad_norm=(*norms,), lr=(0.01,) * 5, scale=())
    look = in_hook("float16", "wire = buffer.half()")
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), look, past), by_hand.rank(1))).verdict
    assert ("fed back" in " ".join(one.text for one in verdict.suggestions)) is fed
    assert any("norm went from 4 to 320, the loss from 0.7 to 1.5" in one for one in verdict.evidence) is fed


@pytest.mark.parametrize(("device", "code"), [("cpu", None), ("cuda:0", "default_hooks.bf16_compress_hook")])
def test_without_a_gpu_ddp_takes_no_hook_in_bfloat16(by_hand, device, code):
    look = exchanged(180_161.0, collective="fp16_compress_hook", by="comm_hook")
    gradient = replace(by_hand.gradient(5, device=device), tensors=(by_hand.fact("fc.weight", posinf=2),))
    verdict = analyse(by_hand.run(*(by_hand.rank(n, gradient, look) for n in range(2)))).verdict
    assert verdict.suggestions[0].code == code
    assert ("Leave fp16_compress_hook out" in verdict.suggestions[0].text) is (device == "cpu")


def test_without_a_gpu_the_line_that_registers_a_hook_is_left_out(by_hand):
    line = "model.register_comm_hook(None, hooks.fp16_compress_hook)"
    harm = by_hand.gradient(5, device="cpu")
    run = by_hand.run(by_hand.rank(0, harm, in_hook("float16", line, "fp16_compress_hook")), by_hand.rank(1))
    assert analyse(run).verdict.suggestions[0].code == f"# {line}"


def test_a_hook_that_leaves_single_precision_exchanged_in_it(by_hand):
    look = in_hook("float32", "x = buffer * buffer")
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), look), by_hand.rank(1))).verdict
    assert verdict.cause == "overflow"


@pytest.mark.parametrize(
    ("size", "collective"),
    [(1.5, "all_reduce"), (70_000.0, "bf16_compress_hook"), (None, "all_reduce"), (math.nan, "all_reduce")],
)
def test_gradients_that_fit_are_no_overflow_but_their_exchange_is_named_all_the_same(verdict_of, size, collective):
    verdict = verdict_of(*[exchanged(size, collective=collective)] * 2)
    assert (verdict.cause, verdict.mechanism, verdict.origin.phase) == ("unknown", None, "collective")
    assert collective in verdict.summary
    words = " ".join([verdict.summary, *verdict.evidence, *(one.text for one in verdict.suggestions)])
    assert "hardware" not in words
    assert "second time" not in words


def test_a_rank_that_found_the_place_goes_before_the_exchange(by_hand):
    looks = exchanged(56_000.0), by_hand.found(5)
    record = by_hand.run(*(by_hand.rank(n, by_hand.gradient(5), look) for n, look in enumerate(looks)))
    assert analyse(record).verdict.origin.op == "aten.log.default"


@pytest.mark.parametrize("facts", [{"complete": False}, {"reconstructed": True}])
def test_a_look_that_left_something_out_calls_nothing_transient(by_hand, facts):
    look = Looked("finite", "replay", 5, facts=facts, reason="finite on this rank; the hooks were left out")
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), look, world=1), world=1)).verdict
    assert verdict.reproduced is None
    assert "Rank 0 could run only a part of the step again, and that was finite; the hooks were left out." in (
        verdict.evidence
    )
    assert "hardware" not in " ".join(one.text for one in verdict.suggestions)


def test_a_rank_that_only_made_its_update_again_did_not_run_the_step_again(by_hand):
    gradient = replace(by_hand.gradient(5), tensors=(by_hand.fact("fc.weight", nan=2),))
    update = Looked("finite", "replay", 5, phase="optimizer", reason="made again, the update is finite")
    failed = Looked("failed", "replay", 5, reason="rank 1 could not go on")
    ranks = by_hand.rank(0, gradient, failed, update), by_hand.rank(1, by_hand.loss(5), gradient, failed)
    verdict = analyse(by_hand.run(*ranks)).verdict
    assert verdict.origin.ranks == (1,)
    assert not any("again alone" in text or "could run only a part" in text for text in verdict.evidence)
    alone = analyse(by_hand.run(by_hand.rank(0, gradient, failed, update))).verdict
    assert alone.reproduced is None
    assert not any("second time" in text for text in (*alone.evidence, *(one.text for one in alone.suggestions)))


@pytest.mark.parametrize("shown", ["bad values came from the hook's own state", "all that came out of it was finite"])
def test_a_hook_that_was_called_again_in_vain_is_not_told_as_left_out(verdict_of, shown):
    look = exchanged(1.5, collective="mine", by="comm_hook")
    again = replace(look, facts={**look.facts, "hook_again": shown})
    told = verdict_of(again, again).evidence
    assert f"When the exchange was run again, {shown}: that it made them is inferred." in told
    assert not any("was not run again" in text for text in told)


def test_gradients_that_were_all_zero_are_told_so_with_the_hook_that_may_divide_by_them(verdict_of):
    look = exchanged(0.0, collective="<lambda>", by="comm_hook")
    facts = {**look.facts, "hook_again": "bad values came from the hook's own state", "hook_at": ["/w/train.py", 47]}
    told = verdict_of(*[replace(look, facts=facts)] * 2)
    assert "Run again without the exchange, the gradients of each rank are finite: all 0." in told.evidence
    assert told.suggestions[0].text == (
        "All gradients that the hook (train.py:47) was given were 0: what divides by their norm, or their "
        "largest, makes NaN of that. Add a small number to the divisor."
    )


def test_the_code_behind_the_model_is_named_only_where_the_model_was_looked_at(by_hand):
    def advice(*events):
        return analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), *events), world=1)).verdict.suggestions[0].text

    assert "Look at the model, and at the code" in advice()
    assert "Look at the model, and at the code" in advice(Looked("refused", "replay", 5, reason="hooks"))
    assert "between the model's outputs and backward()" in advice(Looked("finite", "modules", 5))


def test_a_rank_that_ran_only_a_part_of_the_step_again_is_not_cleared_by_it(by_hand):
    gradient = replace(by_hand.gradient(5), tensors=(by_hand.fact("fc.weight", nan=2),))
    part = Looked("finite", "replay", 5, facts={"complete": False}, reason="finite on this rank")
    told = analyse(by_hand.run(by_hand.rank(0, gradient, part), by_hand.rank(1, gradient, by_hand.found(5))))
    ran = "Rank 0 could run only a part of the step again, and that was finite"
    assert f"{ran}: that the rest of it has no fault of its own is inferred." in told.verdict.evidence
    assert not any("received the damage" in text for text in told.verdict.evidence)


def test_a_reduction_of_fsdp_in_float16_is_the_cause_whatever_the_course_of_the_loss(at, by_hand):
    given = by_hand.fact(min=-67360.0, max=-55418.0, absmax=67360.0)
    rows = {"loss": tuple(10.0**n for n in range(5)), "grad_norm": tuple(10.0**n for n in range(5))}
    course = History(tuple(range(5)), lr=(0.001,) * 5, scale=(None,) * 5, **rows)
    out = by_hand.fact(dtype="float16", posinf=0, neginf=3)
    facts = at("fsdp.chunk_cat.default", (given,), (out,), extra={"float64_finite": True}, history=course)
    facts = replace(facts, origin=replace(facts.origin, op="fsdp.chunk_cat.default"))
    story, _ = explain(facts)
    assert story.slug == "collective_overflow"
    assert story.suggestions[0].code == "MixedPrecisionPolicy(reduce_dtype=torch.float32)"
    assert "67360" in story.evidence[0]


@pytest.mark.parametrize("seen", [{"sent_dtype": "float16", "sent_absmax": 44992.0}, {"by": "script"}])
@pytest.mark.parametrize(("module", "flat"), [("dist", "flat"), ("torch.distributed", "flat"), ("c10d", "self.buf")])
def test_a_sum_that_the_script_itself_makes_in_half_precision_is_mended_in_its_line(at, by_hand, module, flat, seen):
    extra = {"carried_by": "all_reduce", **seen}
    text = f"{module}.all_reduce({flat})"
    line = {"text": text, "column": (0, len(text)), "phase": "optimizer"}
    out = by_hand.fact(dtype="float16", neginf=3)
    facts = at("all_reduce", (by_hand.fact(absmax=44992.0, dtype="float16"),), (out,), extra=extra, **line)
    facts = replace(facts, look=replace(facts.look, source="received"))
    codes = [one.code for one in collective_overflow._advice(facts, "all_reduce")]
    assert codes == [f"{flat} = {flat}.float()\n{text}", f"{flat} /= {module}.get_world_size()\n{text}"]


def test_a_rank_that_saw_nothing_bad_has_received_nothing(by_hand):
    clean = Looked("finite", "replay", 5, facts={"complete": True}, reason="finite on this rank")
    culprit = by_hand.rank(1, by_hand.loss(5), by_hand.found(5))
    told = analyse(by_hand.run(by_hand.rank(0, clean), culprit)).verdict.evidence
    assert "Rank 0 saw nothing bad, also when the step was run again." in told
    assert not any("received the damage" in text for text in told)
    hurt = analyse(by_hand.run(by_hand.rank(0, by_hand.gradient(5), clean), culprit)).verdict.evidence
    assert "Rank 0 ran the step again alone and came out finite: the damage was received." in hurt


def test_a_rank_whose_scaler_left_the_update_out_has_received_the_damage(by_hand):
    clean = Looked("finite", "replay", 5, facts={"complete": True}, reason="finite on this rank")
    culprit = by_hand.rank(1, by_hand.loss(5), by_hand.found(5))
    told = analyse(by_hand.run(by_hand.rank(0, Skipped(5, 256.0, 1, 1), clean), culprit)).verdict.evidence
    assert "Rank 0 ran the step again alone and came out finite: the damage was received." in told
    apart = analyse(by_hand.run(by_hand.rank(0, Skipped(4, 256.0, 1, 1), clean), culprit)).verdict.evidence
    assert "Rank 0 saw nothing bad, also when the step was run again." in apart
