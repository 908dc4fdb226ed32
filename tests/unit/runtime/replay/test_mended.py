"""Where a step goes bad next, once its origin is mended: seen in a run with finite numbers in the origin's place."""

import math

import pytest
import torch
from torch import nn

from nandiag.events import Looked, Next
from nandiag.runtime.replay.mended import further

pytestmark = pytest.mark.usefixtures("next_places")


def angle(u, v):
    u = u / u.norm(dim=-1, keepdim=True)
    v = v / v.norm(dim=-1, keepdim=True)
    return torch.acos((u * v).sum(-1))


def normed_twice(x, layer):
    """Zeros in what both lines divide by, and in one row two directions that are the same."""
    out = layer(x)
    y = torch.stack([x[0] * 0, *out.detach()[1:]])
    return angle(out, y).mean()


def entropy(x, layer):
    weight = torch.relu(layer(x) - layer.bias)
    share = weight / weight.sum(-1, keepdim=True)
    return -(share * share.log()).sum(-1).mean()


def masked_mean(x, layer):
    loss = layer(x).square()
    mask = torch.zeros(4, 1)
    mean = (loss * mask).sum(0) / mask.sum(0)
    return (mean / mean.detach()).sum()


def harmless(x, layer):
    return (layer(x).square() * 0).sqrt().sum()


def bessel(x, layer):
    return torch.log(2 * torch.special.i0(layer(x).abs() + 100.0)).mean()


LINES = {
    bessel: ["return torch.log(2 * torch.special.i0(layer(x).abs() + 100.0)).mean()"],
    normed_twice: ["v = v / v.norm(dim=-1, keepdim=True)", "return torch.acos((u * v).sum(-1))"],
    entropy: ["share = weight / weight.sum(-1, keepdim=True)", "return -(share * share.log()).sum(-1).mean()"],
    masked_mean: ["mean = (loss * mask).sum(0) / mask.sum(0)", "return (mean / mean.detach()).sum()"],
    harmless: ["return (layer(x).square() * 0).sqrt().sum()"],
}


def broken(work, loss_of, **options):
    worker = work(**options)
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(4, 4)
    x[0] = 0.0
    loss_of(x, layer).backward()
    before = [one.grad.clone() for one in layer.parameters()], torch.get_rng_state()
    optimizer.step()
    return worker, before, layer


@pytest.mark.parametrize(("loss_of", "lines"), list(LINES.items()))
def test_the_next_places_of_the_step_are_told_in_their_order(work, loss_of, lines):
    worker, _, _ = broken(work, loss_of)
    found = [worker.looked[0], *(one.look for one in worker.events(Next))]
    assert [look.site.source.strip() for look in found if look.outcome == "found"] == lines
    assert [one.number for one in worker.events(Next)] == list(range(len(lines)))
    assert found[-1].outcome == "finite", "with all of them mended the step is finite"


def test_what_the_run_with_mended_places_leaves_behind(work):
    _, (gradients, generator), layer = broken(work, entropy)
    assert all(torch.equal(one.grad.nan_to_num(), was.nan_to_num())
               for one, was in zip(layer.parameters(), gradients, strict=True))  # fmt: skip
    assert any(bool(one.grad.isnan().any()) for one in layer.parameters())
    assert torch.equal(torch.get_rng_state(), generator)


def test_what_came_bad_from_outside_is_not_run_again(work):
    worker, _, _ = broken(work, lambda x, layer: layer(x * torch.tensor([float("nan"), 1.0, 1.0, 1.0])).sum())
    assert not worker.events(Next)


def test_a_step_that_takes_long_is_run_again_once_alone(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.replay.mended._SECONDS", 0.0)
    monkeypatch.setattr("nandiag.runtime.replay.mended._STEPS", 0)
    assert not broken(work, entropy)[0].events(Next)


def distances(x, layer):
    gap = layer(x).square().sum(1) - layer(x).square().sum(1).detach() - 1e-9
    far = torch.sqrt(gap)
    return -torch.log(far).mean()


def powers(x, layer):
    total = ((layer(x).abs() + 1e8) ** 10).sum(1)
    return torch.log(total).mean()


def half_energy(x, layer):
    wide = (layer(x) + 300).to(torch.float16)
    energy = (wide * wide).sum(1)
    return torch.log(energy.float()).mean()


def masked_row(x, layer):
    """All of the first row is masked: with the usual mend such a row is a mean over all of its positions."""
    share = torch.softmax(layer(x).masked_fill(x == 0, -math.inf), -1)
    share = share / share.sum(-1, keepdim=True)
    return -torch.log(share + 0 * x).mean()


def at_its_end(function, end, inside=0.3):
    """What a bound leaves of a function's end is neither 0 nor infinite."""

    def loss_of(x, layer):
        given = torch.where(x == 0, end, inside) + layer(x) - layer(x).detach()
        return torch.log(function(given).abs()).mean()

    return loss_of


ENDS = [(torch.atanh, 1.0), (torch.atanh, -1.0), (torch.atanh, 1.5), (torch.logit, 0.0), (torch.erfinv, 1.0),
        (torch.acos, 1.1), (torch.asin, 1.1), (torch.acosh, 0.9, 1.5), (torch.log, -0.1), (torch.log2, -0.1),
        (lambda x: torch.log1p(-x), 1.0), (lambda x: torch.log1p(-x), 1.5)]  # fmt: skip


@pytest.mark.parametrize("loss_of", [distances, powers, half_energy, masked_row, *(at_its_end(*one) for one in ENDS)])
def test_what_the_usual_mend_leaves_does_no_harm_further_on(work, loss_of):
    """A root is kept off 0 and what overflows is large: neither is 0, which would break at the next line."""
    worker, _, _ = broken(work, loss_of)
    assert worker.looked[0].outcome == "found"
    assert [one.look.outcome for one in worker.events(Next)] == ["finite"]


def grows(x, layer):
    weight = torch.exp(layer(x) + 200)
    total = weight.sum() * 0
    return (weight / total).mean()


def test_an_exponential_is_bounded_and_its_gradient_too(work):
    worker, _, _ = broken(work, grows)
    found = [worker.looked[0], *(one.look for one in worker.events(Next))]
    told = [look.site.source.strip() for look in found if look.outcome == "found"]
    assert told == ["weight = torch.exp(layer(x) + 200)", "return (weight / total).mean()"]


@pytest.mark.parametrize(
    ("step_seconds", "each", "runs"), [(0.001, 1.5, 2), (1.0, 3.0, 3), (100.0, 25.0, 2), (100.0, 70.0, 0)]
)
def test_further_runs_take_no_longer_than_ten_steps_or_4_seconds_or_a_minute(step_seconds, each, runs):
    looked = Looked("found", "replay", 3, source="op", seconds=each)
    assert len(list(further(lambda: looked, each, step_seconds))) == runs


def score(layer):
    """What is 0 here is divided by once more."""
    hits, missed = (torch.relu(one - one) for one in layer.weight.detach()[:2, 0])
    precision, recall = hits / (hits + missed), hits / (hits + 3)
    return 2 * precision * recall / (precision + recall)


def test_what_made_a_rate_bad_is_looked_at_for_what_breaks_next_as_well(work):
    worker = work()
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        layer(torch.randn(4, 4)).square().mean().backward()
        if step == 2:
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - float(score(layer)))
        optimizer.step()
    looked, following = worker.looked[0], worker.events(Next)
    assert (looked.phase, looked.facts["number"]) == ("optimizer", True)
    assert looked.site.source.strip().startswith("precision, recall = ")
    assert [(one.number, one.look.outcome, one.look.step) for one in following] == [(0, "found", 2), (1, "finite", 2)]
    assert following[0].look.site.source.strip() == "return 2 * precision * recall / (precision + recall)"
