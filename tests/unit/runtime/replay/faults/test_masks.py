"""Masks that meet what they do not fit: which line is told, and what of the mask."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from nandiag.events import Next
from tests.unit.runtime.replay.faults.table import net, sgd


@pytest.mark.parametrize("target", [0, 1], ids=["smoothed", "masked_target"])
def test_a_mask_in_a_loss_is_told_at_the_loss(work, target):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    mask = torch.tensor([False, True, False])
    scores = model(torch.randn(5, 4)).masked_fill(mask, -math.inf)
    F.cross_entropy(scores, torch.full((5,), target), label_smoothing=0.1 * (target == 0)).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", ("aten.sum.dim_IntList", "aten.nll_loss_forward.default")[target])
    assert "label_smoothing" in look.site.source
    assert look.facts["masked_at"][1] == look.site.line - 1


def test_a_causal_mask_that_is_upside_down_is_told(work):
    worker = work(on_anomaly="continue")
    attention, hidden = nn.MultiheadAttention(4, 1, batch_first=True), torch.ones(5, 5, dtype=torch.bool).triu(1)
    optimizer, x = sgd(attention), torch.randn(2, 5, 4)
    attention(x, x, x, attn_mask=~hidden)[0].square().mean().backward()
    optimizer.step()
    assert worker.looked[0].facts.get("upside_down") is True


def test_a_causal_mask_that_meets_padding_on_the_left_is_not_upside_down(work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.randn(2, 3, 4)).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -math.inf)
    scores = scores.masked_fill(torch.tensor([[True, False, False]]), -math.inf)
    scores.softmax(-1).square().mean().backward()
    optimizer.step()
    assert "upside_down" not in worker.looked[0].facts


def test_an_infinity_below_zero_in_the_data_is_no_mask_to_a_linear_layer(work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    low = torch.from_numpy(np.array([[1.0, -math.inf, 2.0, 1.0]], dtype=np.float32))
    model(low).square().mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.phase) == ("input", "data")


def of_a_mask(work, fill, read):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.randn(2, 4)).masked_fill(torch.tensor([[True, True, True], [False, False, False]]), fill)
    read(scores).mean().backward()
    optimizer.step()
    look = worker.looked[0]
    assert look.source == "op"
    assert "masked_at" in look.facts
    return look.site.op


def test_a_row_of_which_a_mask_leaves_nothing_is_told_where_its_least_is_taken(work):
    assert of_a_mask(work, math.inf, lambda scores: scores.amin(1)) == "aten.amin.default"


@pytest.mark.usefixtures("next_places")
@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.LayerNorm(2)], ids=["linear", "norm"])
def test_extremes_of_which_a_mask_leaves_nothing_are_told_and_not_the_layer_that_they_go_into(work, layer):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores, gone = model(torch.randn(2, 4)), torch.tensor([[True, True, True], [False, False, False]])
    high = scores.masked_fill(gone, -math.inf).amax(1)
    low = scores.masked_fill(gone, math.inf).amin(1)
    layer(torch.stack([high, low], 1)).mean().backward()
    optimizer.step()
    looks = [worker.looked[0], *(one.look for one in worker.events(Next))]
    assert [look.site.op for look in looks if look.outcome == "found"] == ["aten.amax.default", "aten.amin.default"]
    assert [look.outcome for look in looks] == ["found", "found", "finite"]


def test_a_choice_that_is_masked_out_is_told_where_it_is_picked(work):
    chosen = torch.ones(2, 1, dtype=torch.long)
    assert of_a_mask(work, -math.inf, lambda scores: scores.gather(1, chosen)) == "aten.gather.default"


class Barred(nn.Module):
    """Moves between states, summed in logarithms; a buffer says which there are none of."""

    def __init__(self):
        super().__init__()
        self.score = nn.Parameter(torch.zeros(2, 2))
        self.register_buffer("bar", torch.tensor([[0.0, -math.inf], [0.0, 0.0]]))

    def forward(self, first):
        path = first
        for _ in range(3):
            moved = path.unsqueeze(-1) + self.score + self.bar
            peak = moved.amax(1, keepdim=True)
            path = (moved - peak).exp().sum(1).log() + peak.squeeze(1)  # <-
        return path.logsumexp(-1).mean()


def test_a_mask_that_meets_nan_again_is_not_where_it_came_from(work):
    worker = work()
    model = Barred()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for second in (0.0, -math.inf):
        model(torch.tensor([[0.0, second]])).backward()
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert (look.source, look.site.op, look.site.function) == ("op", "aten.sub.Tensor", "forward"), look


class Banning(nn.Module):
    """Rules classes out by a buffer that is added to the scores, laid or computed."""

    def __init__(self, banned):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("banned", banned)

    def forward(self, x):
        return self.layer(x) + self.banned


def laid():
    banned = torch.full((3,), 0.25)
    banned[1] = -math.inf  # ruled out
    return banned


PICKS = {
    "nll_loss_forward": F.cross_entropy,
    "gather": lambda scores, target: -scores.log_softmax(-1).gather(1, target[:, None]).mean(),
    "index": lambda scores, target: -scores.log_softmax(-1)[torch.arange(5), target].mean(),
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("make", [laid, lambda: torch.tensor([0.0, -math.inf, 0.0])], ids=["laid", "looks_like_one"])
def test_a_target_that_a_buffer_rules_out_is_told_where_it_is_picked(work, pick, make):
    """The mask is as it is meant to be: for two steps it did no harm."""
    worker = work(on_anomaly="continue")
    model = Banning(make())
    optimizer = sgd(model)
    for step in range(3):
        target = torch.tensor([0, 2, 0, 2, 1 if step == 2 else 0])
        optimizer.zero_grad()
        PICKS[pick](model(torch.randn(5, 4)), target).backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.outcome, look.source, look.step) == ("found", "op", 2)
    assert look.site.op.split(".")[1] == pick
    assert look.facts["masked_by"] == "banned"
    assert ("masked_at" in look.facts) is (make is laid)


def test_a_table_that_was_computed_badly_is_no_mask(work):
    """The logarithm of a count of 0, before the first step, is what is to be mended."""
    worker = work(on_anomaly="continue")
    model = Banning(torch.log(torch.tensor([3.0, 0.0, 2.0])))  # of no count
    optimizer = sgd(model)
    F.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 2, 0, 2, 1])).backward()
    optimizer.step()
    look = worker.looked[0]
    assert "masked_by" not in look.facts
    assert look.site.op == "aten.log.default"


def test_a_mask_that_is_made_anew_as_sequences_grow_is_no_harm(work):
    class Growing(Banning):
        def forward(self, x):
            if len(self.banned) < len(x):
                far = torch.arange(len(x))
                self.banned = torch.full((len(x),) * 2, -math.inf).triu(1) + 0.01 * (far[None] - far[:, None])
            scores = self.layer(x)
            return (scores @ scores.T + self.banned).softmax(-1)

    worker = work(on_anomaly="continue")
    model = Growing(torch.empty(0, 0))
    optimizer = sgd(model)
    for length in range(3, 8):
        optimizer.zero_grad()
        model(torch.randn(length, 4)).square().mean().backward()
        optimizer.step()
    assert worker.harms == []


def test_a_mask_that_is_a_multiple_of_ones_is_told_where_a_softmax_finds_nothing(work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.randn(2, 3, 4))
    nothing = -math.inf * torch.ones_like(scores)
    torch.where(torch.zeros_like(scores) > 0, scores, nothing).softmax(-1).square().mean().backward()
    optimizer.step()
    assert worker.looked[0].site.op == "aten._softmax.default"


def of_both_signs(out):
    return (out * math.inf).sum()


def of_one_sign(out):
    weighted = out.square() * -math.inf
    return (weighted - weighted.mean()).sum()


def of_shares(out):
    return (out.log_softmax(-1) * (-math.inf * torch.full_like(out, 0.25))).sum()


@pytest.mark.parametrize("loss", [of_both_signs, of_one_sign, of_shares])
def test_a_coefficient_without_end_is_no_mask(loss, work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    loss(model(torch.tensor([[1.0, -2.0, 3.0, 1.0], [-3.0, 2.0, 1.0, -1.0]]))).backward()
    optimizer.step()
    assert worker.looked[0].site.op == "aten.mul.Tensor"


@pytest.mark.parametrize("times", [1.0, 300.0])
def test_an_exponential_that_overflows_beside_a_mask_is_told(times, work):
    worker = work(on_anomaly="continue")
    model = net()
    optimizer = sgd(model)
    scores = model(torch.ones(3, 4)).square() + 1
    masked = scores.masked_fill(torch.arange(scores.shape[-1]) == 0, -math.inf)
    weights = (masked * times).exp()
    (weights / weights.sum(-1, keepdim=True)).square().mean().backward()
    optimizer.step()
    assert [one.site.op for one in worker.looked[:1]] == (["aten.exp.default"] if times > 1 else [])


class Filter(nn.Module):
    """One step of a Kalman filter on what is seen, and on what is not by an infinite variance."""

    def __init__(self):
        super().__init__()
        self.noise = nn.Parameter(torch.ones(3))

    def forward(self, y, seen):
        r = torch.where(seen, self.noise, torch.tensor(math.inf))  # laid
        s = self.noise + r
        k = self.noise / s
        return (self.noise - k * s * k + k * y).sum()


def test_an_infinity_for_what_is_missing_is_told_where_it_meets_a_zero(work):
    worker = work(on_anomaly="continue")
    model = Filter()
    optimizer = sgd(model)
    model(torch.randn(3), torch.tensor([True, False, True])).backward()
    optimizer.step()
    look = worker.looked[0]
    assert (look.site.op, look.facts["masked_text"].endswith("# laid")) == ("aten.mul.Tensor", True)
    assert "k * s * k" in look.site.source


def test_the_logarithm_of_a_sum_of_nothing_is_told_and_not_the_mean_that_it_goes_into(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        scores = model(torch.ones(3, 4))
        same = torch.eye(3, 4, dtype=torch.bool) | torch.tensor([[step == 1], [False], [False]])
        rest = torch.logsumexp(scores.masked_fill(same, -torch.inf), 1)  # the sum
        (rest - scores[:, 0]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert (look.step, look.site.op) == (1, "aten.logsumexp.default"), look
    assert look.site.source.endswith("# the sum")
    assert "masked_fill" in look.facts["masked_text"]


def test_of_chances_in_turn_the_last_sum_of_nothing_is_told(work):
    worker = work(on_anomaly="continue")
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(3):
        chances = torch.zeros(3).masked_fill(torch.tensor([False, True, True]), -torch.inf)
        stays = torch.eye(3).masked_fill(torch.eye(3) == 0, -torch.inf)
        for _ in range(3):
            chances = torch.logsumexp(chances[:, None] + stays, 0)  # two of three cannot be reached
        reached = (weight + chances)[None].masked_fill(torch.tensor([step == 1, False, False]), -torch.inf)
        (-torch.logsumexp(reached, 1)).mean().backward()  # the sum
        optimizer.step()
        optimizer.zero_grad()
    look = worker.looked[0]
    assert look.step == 1, look
    assert look.site.source.endswith("# the sum")
