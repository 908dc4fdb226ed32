"""Means of nothing, in the line or by the functions that take in."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from nandiag.events import Site
from nandiag.events.site import Around
from tests.unit.analysis.mends.placing import first, on


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("F.cross_entropy(z[m], y[m])", 'F.cross_entropy(z[m], y[m], reduction="sum") / max(y[m].numel(), 1)'),
        ("loss[m].mean()", "loss[m].sum() / max(loss[m].numel(), 1)"),
        ("torch.mean(loss[m])", "loss[m].sum() / max(loss[m].numel(), 1)"),
        ("F.mse_loss(z, y, reduction='mean')", None),
        ("F.mse_loss(z, y)", 'F.mse_loss(z, y, reduction="sum") / max((z - y).numel(), 1)'),
        (
            "F.cross_entropy(z, y, ignore_index=0)",
            'F.cross_entropy(z, y, ignore_index=0, reduction="sum") / (y != 0).sum().clamp_min(1)',
        ),
        ("loss.mean(0)", "loss.sum(0) / max(loss.size(0), 1)"),
        ("loss.mean(dim=-1, keepdim=True)", "loss.sum(dim=-1, keepdim=True) / max(loss.size(-1), 1)"),
        ("loss.mean((0, 1))", None),
    ],
)
def test_the_mean_of_nothing(at, by_hand, expression, code):
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(f"return {expression}", expression))
    assert first(facts) in {code, f"return {code}"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("m = torch.stack([x[k].mean(), (x[k] ** 2).mean()])",
         "m = torch.stack([x[k].sum() / max(x[k].numel(), 1), (x[k] ** 2).sum() / max((x[k] ** 2).numel(), 1)])"),
        ("m = y.mean() / x[k].mean()", "m = y.mean() / (x[k].sum() / max(x[k].numel(), 1))"),
        ("m, v = x[k].mean(), x[k].var()", None),
    ],
)  # fmt: skip
def test_each_mean_of_the_same_nothing_in_a_line_is_mended(at, by_hand, line, code):
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(line, "x[k].mean()"))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("ends", "weights", "code"),
    [
        ("", False, "if not x.numel(): return"),
        ("self", False, None),
        (None, False, None),
        ("", True, None),
    ],
)
def test_statistics_that_only_take_in_are_left_alone_by_an_empty_batch(at, by_hand, ends, weights, code):
    line = "m, v, n = x.mean(0), x.var(0, unbiased=False), x.size(0)"
    facts = at("mean", (by_hand.fact(shape=(0, 5)),), (by_hand.fact(nan=5),), **on(line, "x.mean(0)"),
               function="update", extra={"of_weights": weights})  # fmt: skip
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends=ends))))
    assert first(facts) == code


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("l = net(x).pow(2).mean()", "net(x).pow(2).mean()",
         "values = net(x).pow(2)\nl = values.sum() / max(values.numel(), 1)"),
        ("l += (net(x) - y).mean()", "(net(x) - y).mean()",
         "values = net(x) - y\nl += values.sum() / max(values.numel(), 1)"),
        ("l = F.mse_loss(net(x), ema(x))", "F.mse_loss(net(x), ema(x))",
         'each = F.mse_loss(net(x), ema(x), reduction="none")\nl = each.sum() / max(each.numel(), 1)'),
        ("l = F.cross_entropy(net(x), ema(x))", "F.cross_entropy(net(x), ema(x))",
         'target = ema(x)\nl = F.cross_entropy(net(x), target, reduction="sum") / max(target.numel(), 1)'),
        ("norms.append(y.pow(2).mean())", "y.pow(2).mean()", "norms.append(y.pow(2).sum() / max(y.numel(), 1))"),
        ("l = f(torch.abs(y[m]).mean(-1))", "torch.abs(y[m]).mean(-1)",
         "l = f(torch.abs(y[m]).sum(-1) / max(y[m].size(-1), 1))"),
        ("f = lambda x: net(x).mean()", "net(x).mean()", None),
        ("l = (a @ b).mean() + values", "(a @ b).mean()", None),
    ],
)  # fmt: skip
def test_what_is_averaged_is_not_computed_twice(at, by_hand, line, expression, code):
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(line, expression))
    assert first(facts) == code


MEANS = [
    "z.pow(k).mean()", "(z ** k).mean()", "torch.pow(2.0, z).mean()", "z.pow(2).mean()", "z.pow(exponent=k).mean()",
    "torch.pow(z, 2.0).mean()", "(2.0 ** z).mean()", "z.abs().pow(k).sqrt().mean()", "F.mse_loss(z, y)",
    "F.l1_loss(z, y)", "F.smooth_l1_loss(z, y)", "F.huber_loss(z, y)", "z.pow(k).mean(-1).sum()",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("expression", MEANS)
@pytest.mark.parametrize("many", [8, 0])
def test_what_is_offered_is_the_same_mean_where_there_are_values(at, by_hand, expression, many):
    """An exponent or a target of another shape makes more values than there are in either."""
    underlined = expression.removesuffix(".sum()")
    facts = at("mean", (by_hand.fact(shape=(0,)),), (by_hand.fact(nan=1),), **on(f"l = {expression}", underlined))
    torch.manual_seed(0)
    names = {
        "z": torch.rand(many, 1),
        "y": torch.rand(many),
        "k": torch.tensor([1.0, 2.0, 3.0]),
        "torch": torch,
        "F": F,
    }
    exec(first(facts), names)  # noqa: S102 - as a user would paste it
    mean = eval(expression, names) if many else torch.zeros(())  # noqa: S307
    assert torch.allclose(names["l"], mean)
