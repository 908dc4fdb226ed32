"""Scripts that train nothing, and loops that make their updates by hand: what is harm, and where it is placed."""

import inspect

import pytest
import torch
from torch import nn

from nandiag.events import Harm, Note
from nandiag.runtime.public import AnomalyStop

BAD = 3


class Ratio(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.fc, self.made = nn.Linear(4, 4), made

    def forward(self, x):
        return {"ratio": self.made(self.fc(x), x)}  # <-


def divide(y, x):
    return y / x.abs().sum(1, keepdim=True)


def serve(model, calls=6):
    for call in range(calls):
        model(torch.zeros(2, 4) if call == BAD else torch.ones(2, 4))


def line_of(function, mark="# <-"):
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, text in enumerate(lines) if text.rstrip().endswith(mark))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_bad_output_is_harm_at_once_and_its_op_is_named(work, mode):
    worker = work(level="op")
    with mode():
        serve(Ratio(divide), BAD + 1)
    (harm,) = worker.harms
    assert (harm.what, harm.step, harm.phase, harm.recoverable) == ("output", BAD, "forward", True)
    (looked,) = worker.looked
    assert (looked.method, looked.outcome, looked.step) == ("watch", "found", BAD)
    assert (looked.site.op, looked.site.function) == ("aten.div.Tensor", "divide")
    assert looked.inputs[1].zeros == 2


@pytest.mark.parametrize("hand_on", [
    lambda made: made.to(torch.bfloat16), lambda made: made.t().reshape(-1), lambda made: made.t().contiguous(),
    lambda made: made.t().flatten(), lambda made: made.double().to(made),
], ids=["cast", "reshape", "contiguous", "flatten", "cast_back"])  # fmt: skip
def test_in_inference_mode_what_only_copies_hands_the_origin_on(work, hand_on):
    """There such calls are one op, whose schema tells of a view."""
    worker = work(level="op")
    with torch.inference_mode():
        serve(Ratio(lambda y, x: hand_on(divide(y, x))), BAD + 1)
    (looked,) = worker.looked
    assert (looked.outcome, looked.site.op, looked.site.function) == ("found", "aten.div.Tensor", "divide")


def test_the_module_level_names_the_module(work):
    worker = work(level="module")
    with torch.no_grad():
        serve(nn.Sequential(Ratio(divide)), BAD + 1)
    (looked,) = worker.looked
    assert (looked.step, looked.site.module, looked.source) == (BAD, "0", "module")


def test_with_gradients_on_it_is_told_when_the_script_ends_untrained(work):
    worker = work(level="op")
    serve(Ratio(divide))
    assert worker.harms == []
    finished = worker.sentinel.finish()
    (harm,) = worker.harms
    assert (harm.what, harm.step) == ("output", BAD)
    assert worker.looked[0].site.op == "aten.div.Tensor"
    assert finished.steps == 6
    assert "Nothing was trained" in worker.events(Note)[0].text


def test_not_when_training_follows(work):
    worker = work(level="op")
    model = Ratio(divide)
    serve(model)
    model(torch.ones(2, 4))["ratio"].sum().backward()
    worker.sentinel.finish()
    assert worker.harms == []


@pytest.mark.parametrize(
    "made",
    [
        lambda y, x: y.masked_fill(torch.arange(4) > 1, -torch.inf),
        lambda y, x: (y / x.sum()).nan_to_num(),
        lambda y, x: torch.where(x.sum() > 0, y / x.sum(), y),
        lambda y, x: torch.minimum(torch.full_like(y, torch.inf), y),
        lambda y, x: y.masked_fill(y < torch.inf, -torch.inf).softmax(-1).isnan(),
    ],
    ids=["mask", "nan_to_num", "guarded", "running_minimum", "not_a_float"],
)
@pytest.mark.parametrize("level", ["module", "op"])
def test_what_does_no_harm_is_none(work, level, made):
    worker = work(level=level)
    with torch.no_grad():
        serve(Ratio(made))
    worker.sentinel.finish()
    assert worker.harms == []


def test_at_the_step_level_inference_is_left_alone(work):
    worker = work()
    with torch.no_grad():
        serve(Ratio(divide))
    worker.sentinel.finish()
    assert worker.harms == []


def test_without_a_module_the_last_number_read_is_the_output(work):
    worker = work(level="op")
    torch.tensor(torch.nan).item()
    torch.exp(torch.full((3,), 100.0)).sum().item()
    worker.sentinel.finish()
    (harm,) = worker.harms
    assert (harm.what, harm.tensors[0].posinf) == ("output", 1)
    assert worker.looked[0].site.op == "aten.exp.default"


@pytest.mark.parametrize("number_of", [lambda made: max(made.tolist()), lambda made: float(made.max())])
def test_a_number_that_went_by_way_of_python_is_led_back_to_what_was_bad_before(work, number_of):
    worker = work(level="op")
    mask = torch.full((3,), -torch.inf)
    index = torch.ones(3) / torch.zeros(3)
    total = torch.zeros(()) + number_of(index)
    (total / 2).item()
    worker.sentinel.finish()
    (looked,) = worker.looked
    assert (looked.outcome, looked.site.op, looked.method) == ("found", "aten.div.Tensor", "tape")
    assert looked.reason.startswith("add was given a number")
    assert looked.phase
    assert len(mask) == len(index)


def test_a_number_that_the_script_gives_itself_is_named_where_it_is_given(work):
    worker = work(level="op")
    mask = torch.full((3,), -torch.inf)
    (torch.zeros(()) + float("nan")).item()
    worker.sentinel.finish()
    assert worker.looked[0].site.op == "aten.add.Tensor"
    assert len(mask) == 3


def test_a_number_on_the_way_is_no_output(work):
    worker = work(level="op")
    torch.tensor(torch.nan).item()
    torch.ones(3).sum().item()
    worker.sentinel.finish()
    assert worker.harms == []


def test_the_policy_stop_ends_at_a_bad_output(work):
    worker = work(level="op", on_anomaly="stop")
    with torch.no_grad(), pytest.raises(AnomalyStop):
        serve(Ratio(divide))
    assert len(worker.harms) == 1


# ---------------------------------------------------------------------- updates by hand


def by_hand(update, *, loss_of=lambda h, step: (h - 1).square().mean(), steps=6):
    first, second = torch.randn(4, 8, requires_grad=True), torch.randn(8, 1, requires_grad=True)
    for step in range(steps):
        loss = loss_of(torch.ones(5, 4) @ first @ second, step)
        loss.backward()
        for one in (first, second):
            update(one, step)
    return first, second


def under_no_grad(one, step):
    with torch.no_grad():
        one -= 0.01 * one.grad
        one.grad = None


def by_data(one, step):
    one.data.add_(one.grad, alpha=-0.01)
    one.grad.zero_()


def singular(h, step):
    return (h - h.detach() if step == BAD else h).square().sum().sqrt()  # <-


@pytest.mark.parametrize("update", [under_no_grad, by_data])
@pytest.mark.parametrize("level", ["step", "op"])
def test_a_gradient_is_harm_before_an_update_by_hand_uses_it(work, level, update):
    worker = work(level=level, on_anomaly="auto")
    with pytest.raises(AnomalyStop):
        by_hand(update, loss_of=singular)
    harm = next(one for one in worker.harms if one.what == "gradient")
    assert harm.step == BAD
    assert {fact.name for fact in harm.tensors} == {"first", "second"}
    looked = worker.looked[-1]
    assert (looked.outcome, looked.method, looked.phase) == (
        "found",
        {"step": "replay", "op": "watch"}[level],
        "backward",
    )
    assert (looked.site.node, looked.site.line) == ("SqrtBackward0", line_of(singular))


def decaying(one, step):
    rate = torch.tensor(float(BAD - step)).reciprocal()  # <-
    one.data -= 0.001 * rate * one.grad
    one.grad = None


def test_an_update_by_hand_that_spoils_the_weights_is_seen_at_the_next_backward(work):
    worker = work(level="op", on_anomaly="auto")
    with pytest.raises(AnomalyStop):
        by_hand(decaying)
    harm = worker.harms[0]
    assert (harm.what, harm.step, harm.phase, harm.since) == ("parameter", BAD, "optimizer", BAD - 1)
    assert {fact.name for fact in harm.tensors} == {"first", "second"}
    looked = worker.looked[0]
    assert (looked.site.op, looked.phase, looked.site.line) == (
        "aten.reciprocal.default",
        "optimizer",
        line_of(decaying),
    )


def test_a_weight_that_was_bad_from_the_start(work):
    worker = work()
    weight = torch.full((3,), torch.nan, requires_grad=True)
    (weight * 2).sum().backward()
    harm = worker.harms[0]
    assert (harm.what, harm.step, harm.phase, harm.since) == ("parameter", 0, "init", None)


def test_a_mask_that_gradients_reach_is_no_harm(work):
    worker = work()
    mask, weight = torch.full((3,), -torch.inf, requires_grad=True), torch.ones(3, requires_grad=True)
    for _ in range(2):
        torch.cat([mask, weight]).softmax(0).square().sum().backward()
    assert worker.events(Harm) == []


@pytest.mark.parametrize("level", ["step", "op"])
def test_a_clean_loop_by_hand_finds_nothing_and_keeps_every_bit(work, level):
    def bits():
        torch.manual_seed(3)
        return [one.tolist() for one in by_hand(under_no_grad)]

    plain = bits()
    worker = work(level=level)
    assert bits() == plain
    assert worker.harms == []
    assert worker.sentinel.clock.step == 6


def test_what_was_made_in_an_earlier_step_is_told_with_its_numbers(work):
    worker = work(level="op")
    weights = torch.ones(3) / torch.tensor([1.0, 0.0, 2.0])
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (model(torch.ones(2, 3)) * weights[int(step == 2)]).square().mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.site.op, look.facts["made_at_step"], look.facts["float64_finite"]) == ("aten.div.Tensor", 0, False)
    assert look.inputs[1].zeros == 1
