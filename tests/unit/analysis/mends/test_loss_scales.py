"""A GradScaler's scale that alone makes a gradient too large: the scaler is to leave such an update out."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import History, Warned
from tests.unit.analysis.ops.told import on


@pytest.fixture
def overflowing(at, by_hand):
    def build(dtype="float16", **facts):
        given, bad = by_hand.fact(max=1.87e6, absmax=1.87e6), by_hand.fact(posinf=3, dtype=dtype)
        extra = {
            "scale_alone": 1024.0, "loss_factor": 1024.0, "loss_factor_at": ["train.py", 19], "float64_finite": True,
            "float64_absmax": 1.87e6, "autocast": True, **facts,
        }  # fmt: skip
        line = on("loss = (out - y).pow(2).mean()", "out - y")
        made = at("_to_copy", (given,), (bad,), node="SubBackward0", forward_op="aten.sub.Tensor", extra=extra, **line)
        return replace(made, harm=replace(by_hand.gradient(3), names={"optimizer": "self.opt", "model": "net"}))

    return build


@pytest.mark.parametrize("ended", [True, False])
def test_the_update_is_left_to_the_scaler(overflowing, ended):
    story, found = explain(overflowing(script_ended=ended))
    first = found.suggestions[0]
    assert (story, found.slug) == (None, "overflow")
    assert "by 1024; run again without that, the step is finite" in found.evidence[1]
    assert first.code == "scaler.step(self.opt)\nscaler.update()"
    assert ("raise nothing by a gradient" in first.text) is ended
    assert not any("torch.amp.GradScaler" in (one.code or "") for one in found.suggestions)  # it has one


def test_weights_in_float16_are_none_for_a_scaler(overflowing):
    _, found = explain(overflowing(autocast=False, script_ended=True))
    assert "keep the weights in float32" in found.suggestions[0].text
    assert found.suggestions[0].code == "net.float()"


@pytest.mark.parametrize("ended", [True, False])
def test_of_weights_in_float32_nothing_is_said_of_half_precision(overflowing, ended):
    _, found = explain(overflowing(dtype="float32", autocast=False, script_ended=ended, float64_absmax=5.1e38))
    assert found.suggestions[0].code == "scaler.step(self.opt)\nscaler.update()"
    assert not any("float16" in one.text for one in found.suggestions), found.suggestions


@pytest.mark.parametrize(("scale", "slug"), [(1024.0, None), (None, "data_outlier")])
def test_a_large_batch_is_no_story_where_the_scale_alone_was_too_much(overflowing, scale, slug):
    facts = {"size": 1807.0, "largest": 4.2, "batches": 44, "deviations": 50.6, "sample": 9, "samples": 32}
    known = overflowing(scale_alone=scale)
    outlier = Warned("batch_outlier", known.origin.step, facts, "x")
    story, found = explain(replace(known, warned=(outlier,)))
    assert (story and story.slug, found.slug) == (slug, "overflow")


LINE = "(loss * scaler.scale).backward()"


def scaled_by_hand(at, by_hand, line=LINE, factor=65536.0, shape=()):
    given, bad = (by_hand.fact(dtype="float16", shape=shape, **values) for values in ({"max": 1.7}, {"posinf": 1}))
    extra = {"arg1": factor, "float64_finite": True, "float64_absmax": 1.745 * factor, "autocast": False}
    expression = line[line.index("loss * ") :].split(")")[0]
    return explain(at("mul", (given,), (bad,), phase="loss", extra=extra, **on(line, expression)))[1].suggestions


@pytest.mark.parametrize(("factor", "begins"), [(65536.0, True), (60000.0, False)])
def test_a_scale_of_the_scripts_own_that_grew_too_large_is_told_first(at, by_hand, factor, begins):
    first, second = scaled_by_hand(at, by_hand, factor=factor)
    assert "multiplies its loss by" in first.text
    assert "without that it is 1.745" in first.text
    assert "halve it" in first.text
    assert ("backward begins with the scale" in first.text) is begins
    assert second.text.startswith("Use bfloat16")


def test_a_scale_that_leaves_float32_is_told_first_and_no_batch_is_blamed_for_the_losses_it_made(at, by_hand):
    loss = by_hand.fact(shape=(), min=10312.0, max=10312.0, absmax=10312.0)
    extra = {"arg1": 1.33e36, "float64_finite": True, "float64_absmax": 1.37e40, "autocast": False}
    losses = tuple(1e16 * 200.0 ** (step // 2) for step in range(20))
    past = History(tuple(range(20)), losses, (77.0,) * 20, (1e-4,) * 20, (None,) * 20)
    given = {"phase": "loss", "step": 20, "extra": extra, "history": past, **on(LINE, "loss * scaler.scale")}
    story, found = explain(at("mul", (loss,), (by_hand.fact(shape=(), posinf=1),), **given))
    assert (story, found.slug) == (None, "overflow")
    assert "The script multiplies its loss by 1.33e36 here, and without that it is 10301" in found.suggestions[0].text
    assert "float16" not in found.suggestions[0].text


def test_a_number_that_is_no_scale_of_the_loss_has_no_method_of_a_tensor(at, by_hand):
    told = scaled_by_hand(at, by_hand, line="y = loss * self.temperature")
    assert not any("multiplies its loss" in one.text or ".temperature.float()" in (one.code or "") for one in told)
    told = scaled_by_hand(at, by_hand, line="y = loss * 65536.0")
    assert told[-1].code == "y = loss.float() * 65536.0"
