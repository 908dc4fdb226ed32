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
