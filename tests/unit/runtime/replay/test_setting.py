"""The loop reads a buffer that the forward then spoils: run again it reads what was in it."""

import torch
from torch import nn

BAD = 3


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x):
        y = self.layer(x - self.centre.clone())
        self.centre.lerp_(x.detach().mean(0), 0.1)  # of nothing
        return y


def test_a_buffer_that_the_loop_reads_before_it_is_spoilt_is_read_as_it_was(work):
    worker, model = work(), Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        x = torch.ones(2, 4)
        kept = x[(x * (model.centre + 1)).sum(1) > 0]
        weight = kept[0, 0]  # an error where none is kept
        loss = model(kept[[]] if step == BAD else kept).sum() * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked.reason
    assert looked.site.source.endswith("# of nothing")


def drawing():
    """Return what draws a number a row, and what has it draw one below 0.05 next, and none behind that."""
    generator = torch.Generator()

    def first_is_low(seed):
        one, other = torch.rand(2, 8, generator=generator.manual_seed(seed))
        return bool((one < 0.05).any() and (other > 0.05).all())

    seed = next(filter(first_is_low, range(1000)))
    return lambda rows: torch.rand(rows, 1, generator=generator), lambda: generator.manual_seed(seed)


class Dropping(nn.Module):
    """Drops rows by a generator that it has no hold of."""

    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 3), draw

    def forward(self, x, least):
        return self.layer(x) * (self.draw(len(x)) > least)


def test_a_finite_run_on_other_draws_is_not_complete(work):
    worker, (draw, make_it_low) = work(), drawing()
    model = Dropping(draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(BAD + 1):
        make_it_low()
        made = model(torch.randn(8, 4), 0.05 if step == BAD else 0.0)
        loss = (made / made.norm(dim=1, keepdim=True)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"]) == ("finite", False), looked


def test_what_is_bad_alone_and_comes_out_finite_again_leaves_nothing_in_doubt(work):
    worker, model, left = work(), nn.Linear(4, 3), [BAD]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(BAD + 1):
        made = model(torch.randn(8, 4))
        with torch._C.DisableTorchFunction():
            made.data[0, 0] = torch.nan if not left[0] else 0.0  # as a bit that flips
        left[0] -= 1
        loss = made.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"]) == ("finite", True), looked
