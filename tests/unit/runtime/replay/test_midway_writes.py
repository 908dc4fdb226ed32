"""Weights that the loop itself writes into between two backward calls of a step (SAM without a closure)."""

import torch
from torch import nn


class Sam:
    """Climbs by hand, between two backward calls, and back before the update."""

    def __init__(self, weights, inner):
        self.weights, self.inner = list(weights), inner

    @torch.no_grad()
    def ascent(self):
        norm = torch.norm(torch.stack([one.grad.norm() for one in self.weights]))
        self.climbs = [one.grad * (0.05 / norm) for one in self.weights]  # the line
        for one, climb in zip(self.weights, self.climbs, strict=True):
            one.add_(climb)

    @torch.no_grad()
    def descent(self):
        for one, climb in zip(self.weights, self.climbs, strict=True):
            one.sub_(climb)
        self.inner.step()


def margin(scores, y):
    own = nn.functional.one_hot(y, 3).bool()
    others = scores.masked_fill(own, -1e9).amax(1, keepdim=True)
    return (1 - scores.gather(1, y[:, None]) + others).clamp_min(0).mean()  # flat, once all are far enough


def test_the_line_that_made_what_was_written_is_named_and_not_the_last_write(work):
    torch.manual_seed(0)
    worker = work(on_anomaly="continue")
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
    sam, centres = Sam(net.parameters(), torch.optim.SGD(net.parameters(), 0.3)), torch.randn(3, 5) * 3
    for _ in range(70):
        y = torch.randint(0, 3, (12,))
        x = centres[y] + 0.2 * torch.randn(12, 5)
        for part in (sam.ascent, sam.descent):
            net.zero_grad()
            margin(net(x), y).backward()
            part()
        if worker.looked:
            break
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked
    assert (looked.phase, looked.site.op) == ("optimizer", "aten.reciprocal.default")
    assert [one.zeros for one in looked.inputs] == [1]  # the norm
    assert "began_bad" not in looked.facts
    assert "when the step began" not in (looked.reason or "")
