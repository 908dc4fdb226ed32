"""An op of the script's own writes into memory unsaid: what is read there before it runs is not told for certain."""

import pytest
import torch
from torch import nn

from nandiag.analysis.timeline import shown_again
from tests.unit.runtime.training import train_to_a_zero

STATE = torch.ones(8, 1)
BAD = 2


@torch.library.custom_op("nandiag_unsaid::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    STATE.copy_(torch.log(x.abs().amin(1, keepdim=True)))
    return x.clone()


class Scaled(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.layer, self.run = nn.Linear(4, 4), run

    def forward(self, x):
        h = self.layer(x) * STATE.mean()
        self.run(x)
        return h * STATE.view(-1)[:8].unsqueeze(1).clone()


def bad_by_numpy(x):
    STATE.numpy()[1] = float("inf") if (x == 0).any() else 1.0


@pytest.mark.parametrize(("run", "certain"), [(scale, False), (bad_by_numpy, True)])
def test_what_an_op_may_have_written_later_is_not_shown_again(work, run, certain):
    STATE.fill_(1.0)
    worker = work()
    train_to_a_zero(Scaled(run), BAD)
    found = worker.looked[0]
    assert found.source == "outside"
    assert shown_again(found) is certain
    assert found.facts.get("unsaid") == (None if certain else ["nandiag_unsaid.scale.default"])
