"""What the loop computes between steps and writes into a weight that nobody trains: told where it was computed."""

import copy

import pytest
import torch
from torch import nn

BAD = 4


class Teacher:
    """The mean of the students since the last reset, which a net of its own holds."""

    def __init__(self, student):
        self.sum = {name: torch.zeros_like(one) for name, one in student.state_dict().items()}
        self.count = torch.zeros(())
        self.net = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def collects(self, student):
        for name, one in student.state_dict().items():
            self.sum[name] += one
        self.count += 1

    @torch.no_grad()
    def copies(self):
        for name, one in self.net.state_dict().items():
            one.copy_(self.sum[name] / self.count)

    @torch.no_grad()
    def mixes(self):
        for name, one in self.net.named_parameters():
            one.mul_(0.5).add_(self.sum[name] / self.count, alpha=0.5)

    @torch.no_grad()
    def sets(self):
        for name, one in self.net.named_parameters():
            one[:] = self.sum[name] / self.count

    def resets(self):
        for one in (*self.sum.values(), self.count):
            one.zero_()


@pytest.mark.parametrize("inner", [3, 400])
@pytest.mark.parametrize("publishes", [Teacher.copies, Teacher.mixes, Teacher.sets])
def test_what_was_computed_to_be_written_there_is_told(work, publishes, inner):
    """What a large weight held before is not kept, nor that of one that is written under another name."""
    worker, student = work(), nn.Sequential(nn.Linear(3, inner), nn.Linear(inner, 60))
    teacher = Teacher(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for step in range(BAD + 1):
        x = torch.randn(4, 3)
        loss = (student(x) - teacher.net(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == BAD - 1:
            teacher.resets()
        else:
            teacher.collects(student)
        publishes(teacher)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert (looked.site.op, looked.site.function) == ("aten.div.Tensor", publishes.__name__), looked


class Pruned(nn.Module):
    """Rows that count for little are left out, and the others are scaled by how many there are."""

    def __init__(self, buffer):
        super().__init__()
        self.weight, self.base = nn.Parameter(torch.zeros(4, 3)), nn.Linear(3, 4)
        self.register_buffer("keep", torch.ones(4))
        self.register_buffer("scale", torch.tensor(2.0) if buffer else None)
        self.scale = torch.tensor(2.0)

    def forward(self, x):
        return self.base(x) + (x @ self.weight.t() * self.keep) * self.scale

    @torch.no_grad()
    def prunes(self):
        self.keep.copy_((self.weight.norm(dim=1) > 1e9).float())
        self.scale.copy_(8 / self.keep.sum())


@pytest.mark.parametrize("buffer", [True, False])
def test_an_infinity_that_was_written_before_is_told_and_not_the_0_that_it_meets(work, buffer):
    worker, net = work(), Pruned(buffer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(BAD + 1):
        if step == BAD:
            net.prunes()
        loss = net(torch.randn(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert (looked.site.op, looked.site.function) == ("aten.reciprocal.default", "prunes"), looked
