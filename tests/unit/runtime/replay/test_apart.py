"""A step that may not be run again, for a hook of the script's own would run twice: its loss code alone may be."""

import torch
from torch import nn


class Root(nn.Module):
    """Gives shares between 0 and 1; their gradient is infinite where ``bad``, for a root of 0 is added."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x, *, bad):
        shares = self.layer(x).sigmoid()
        return shares + (self.layer.weight * 0.0).sum().abs().sqrt() if bad else shares


def trained(*, bad_loss, bad_gradient):
    """Train a model with a hook of the script's own; in step 2 the loss, or its gradient alone, goes bad."""
    torch.manual_seed(0)
    model = Root()
    model.register_forward_hook(lambda *_: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        shares = model(torch.rand(5, 3), bad=bad_gradient and step == 2)
        loss = -(shares * (not (bad_loss and step == 2))).log().mean()  # the line
        optimizer.zero_grad()
        loss.backward()
        shares.detach().numpy()[:] = 0.0  # the loop counts in place, unseen
        optimizer.step()


def test_a_bad_loss_has_its_line_of_what_the_model_gave(work):
    worker = work(on_anomaly="continue")
    trained(bad_loss=True, bad_gradient=False)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == ("found", "op", 2, "loss"), looked
    assert looked.site.source.rstrip().endswith("# the line")


def test_a_loss_that_was_finite_is_not_the_harm_whatever_it_would_be_by_now(work):
    worker = work(on_anomaly="continue")
    trained(bad_loss=False, bad_gradient=True)
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("refused", 2), looked
