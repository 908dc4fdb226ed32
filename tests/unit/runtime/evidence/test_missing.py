"""NaN that stands for what is missing, and a mask that is to leave it out by a product."""

import ast
import inspect
import textwrap

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Origin

F = nn.functional


def padded(step):
    lengths = [3, 4, 4] if step == 2 else [4, 4, 4]
    rows = [torch.ones(length, 2) for length in lengths]
    return pad_sequence(rows, batch_first=True, padding_value=float("nan"))


def holed(step):
    rows = torch.ones(3, 4, 2)
    if step == 2:
        rows[0, 3] = float("nan")
    return rows


KEPT = [holed(0), holed(2)]


def brought(step):
    return KEPT[step == 2]


def train(batch, loss_of):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = batch(step)
        known = ~torch.isnan(x[..., 0])
        out = model(torch.where(known[..., None], x, 0))[..., 0]
        loss_of(out, x.sum(-1), known).backward()
        optimizer.step()
        optimizer.zero_grad()


def multiplied(out, target, known):
    return ((out - target) ** 2 * known).sum() / known.sum()  # the product


def by_numbers(out, target, known):
    weights = known.float()
    return (weights * (out - target).abs()).mean()  # the product


@pytest.mark.parametrize("batch", [padded, holed, brought])
@pytest.mark.parametrize("loss_of", [multiplied, by_numbers])
def test_the_product_with_a_mask_is_told_where_nan_is_meant(work, batch, loss_of):
    worker = work(on_anomaly="continue")
    train(batch, loss_of)
    look = worker.looked[0]
    assert (look.step, look.source, look.site.op) == (2, "op", "aten.mul.Tensor"), look
    assert look.site.source.endswith("# the product")
    assert look.facts["masked_nan"] is True
    assert ("masked_at" in look.facts) is (batch is not brought)


def beside(out, target, known):
    return multiplied(out, target, known) + (out - target).mean()


def by_chance(out, target, known):
    return ((out - target) * torch.tensor([[1.0, 1, 0, 0]])).mean()


@pytest.mark.parametrize(("batch", "loss_of"), [(padded, beside), (brought, beside), (brought, by_chance)])
def test_the_product_is_not_told_where_nan_goes_round_it_or_the_mask_is_another(work, batch, loss_of):
    worker = work(on_anomaly="continue")
    train(batch, loss_of)
    look = worker.looked[0]
    assert look.step == 2
    assert "masked_nan" not in look.facts


def of_one_number(out, target, known):
    return ((out - target) * torch.tensor(0.0)).mean()


def test_a_single_number_is_no_mask(work):
    worker = work(on_anomaly="continue")
    train(padded, of_one_number)
    look = worker.looked[0]
    assert look.step == 2
    assert "masked_nan" not in look.facts


# ---------------------------------------------------------------------- the mend, executed


def inline(out, target, known):
    return ((out - target) ** 2 * known).sum() / known.sum()


def by_a_loss(out, target, known):
    per = F.mse_loss(out, target, reduction="none")
    return (per * known).sum() / known.sum()


def by_absolutes(out, target, known):
    per = F.l1_loss(out, target, reduction="none")
    return (per * known).sum() / known.sum()


def by_a_module(out, target, known):
    weights = known.float()
    per = nn.MSELoss(reduction="none")(out, target)
    return (weights * per).sum() / weights.sum()


def by_an_expression(out, target, known):
    d = (out - target) / 2.0
    return (d**2 * known).sum() / known.sum()


def by_a_sum_with_a_part_made_before(out, target, known):
    error = target * 2 - out
    per = error.abs()
    return ((per + out * 2) * known).sum() / known.sum()


def with_two_lines(out, target, known):
    per = F.huber_loss(
        out,
        target * 1.0, reduction="none",
    )  # fmt: skip
    return (per * known).sum() / known.sum()


def with_a_mask_made_behind(out, target, known):
    per = F.mse_loss(out, target, reduction="none")
    late = known.float()
    return (per * late).sum() / late.sum()


def under_a_root(out, target, known):
    per = (out - out.detach() - target).abs().sqrt()
    return (per * known).sum() / known.sum()


def to_no_whole_power(out, target, known):
    per = (target - out) ** 1.5
    return (per * known).sum() / known.sum()


def of_its_inverse(out, target, known):
    per = 1 / (out * target)
    return (per * known).sum() / known.sum()


def met_twice(out, target, known):
    per = (out - target) * (out + target)
    return (per * known).sum() / known.sum()


def told_of(look):
    site = look.site
    own = {name: getattr(site, name) for name in ("op", "file", "line", "column", "source")}
    given = {"inputs": look.inputs, "outputs": look.outputs, "phase": look.phase}
    origin = Origin("nan", 0, (0,), look.step, **own, **given)
    return explain(Facts(origin, "look", look=look))[1]


def mended(loss_of, code, site):
    """Return the function with the code in the place of the statement that it is written for."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(loss_of)))
    first = loss_of.__code__.co_firstlineno
    (body,) = tree.body
    at = next(n for n, one in enumerate(body.body) if one.lineno <= site["line"] - first + 1 <= one.end_lineno)
    body.body[at : at + 1] = ast.parse(f"def f():\n    {code}").body[0].body
    names = dict(globals())
    exec(compile(ast.fix_missing_locations(tree), "mended", "exec"), names)  # noqa: S102
    return names[loss_of.__name__]


@pytest.mark.parametrize("batch", [padded, holed, brought])
@pytest.mark.parametrize(
    ("loss_of", "code"),
    [
        (inline, "return ((out - torch.where(known, target, 0)) ** 2 * known).sum() / known.sum()"),
        (by_a_loss, 'per = F.mse_loss(out, torch.where(known, target, 0), reduction="none")'),
        (by_absolutes, 'per = F.l1_loss(out, torch.where(known, target, 0), reduction="none")'),
        (by_a_module, 'per = nn.MSELoss(reduction="none")(out, torch.where(weights != 0, target, 0))'),
        (by_an_expression, "d = (out - torch.where(known, target, 0)) / 2.0"),
        (by_a_sum_with_a_part_made_before, "error = torch.where(known, target * 2, 0) - out"),
        (with_two_lines, "per = F.huber_loss(out, torch.where(known, target * 1.0, 0), reduction='none')"),
    ],
)
def test_a_number_stands_for_the_nan_where_it_meets_a_gradient_and_all_gradients_are_finite(work, batch, loss_of, code):
    worker = work(on_anomaly="continue")
    train(batch, loss_of)
    look = worker.looked[0]
    (suggestion,) = told_of(look).suggestions
    assert suggestion.code == code
    assert ("In line" in suggestion.text) is (loss_of is not inline)
    x = batch(2)
    known, weight = ~torch.isnan(x[..., 0]), torch.ones(2, requires_grad=True)
    out = torch.where(known[..., None], x, 0) @ weight + 0.5
    loss = mended(loss_of, code, look.facts["met"]["site"])(out, x.sum(-1), known)
    loss.backward()
    assert loss.isfinite()
    assert weight.grad.isfinite().all()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "loss_of", [with_a_mask_made_behind, under_a_root, to_no_whole_power, of_its_inverse, met_twice]
)
def test_no_code_is_given_where_no_number_is_known_to_help(work, loss_of):
    worker = work(on_anomaly="continue")
    train(holed, loss_of)
    look = worker.looked[0]
    assert look.facts["masked_nan"] is True
    (suggestion,) = told_of(look).suggestions
    assert suggestion.code is None
    assert suggestion.text.startswith("Put a number in the place of the NaN before the arithmetic")


def test_no_code_is_given_where_the_nan_went_through_the_model(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = holed(step)
        known = ~torch.isnan(x[..., 0])
        per = (model(x)[..., 0] - 1.0) ** 2
        ((per * known).sum() / known.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert look.facts.get("masked_nan") is True
    (suggestion,) = told_of(look).suggestions
    assert suggestion.code is None
