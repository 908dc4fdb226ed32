"""A stage of a pipeline that sends and receives within functions of the script's own is run again by its rank alone."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

BAD = 2


class Post:
    """Stands in for the other ranks: what is sent goes nowhere, what comes are numbers of its own."""

    def __init__(self, monkeypatch):
        self.sent, self.came = [], 0
        for name, stands_in in (("send", self.send), ("recv", self.recv)):
            for home in (dist, dist.distributed_c10d):
                monkeypatch.setattr(home, name, stands_in)

    def send(self, tensor, dst=None, group=None, tag=0, group_dst=None):  # noqa: ARG002
        self.sent.append(tensor.clone())

    def recv(self, tensor, src=None, group=None, tag=0, group_src=None):  # noqa: ARG002
        self.came += 1
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + self.came)
        return src


@pytest.fixture
def post(monkeypatch):
    return Post(monkeypatch)


class Get(torch.autograd.Function):
    @staticmethod
    def forward(ctx, like):
        came, ctx.source = torch.zeros(4, 3), 1
        dist.recv(came, ctx.source)
        return came + 0.0 * like

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient.contiguous(), ctx.source)
        return torch.zeros(())


class Give(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        dist.send(x.detach(), 2)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, gradient):
        came = torch.zeros(ctx.shape)
        dist.recv(came, 2)
        return gradient + came


class Stage(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return x / x.norm(dim=1, keepdim=True)  # the line


def trained():
    stage, like = Stage(3, 3), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
    for step in range(BAD + 1):
        with torch.no_grad():
            for one in stage.parameters():
                one.mul_(step != BAD)
        optimizer.zero_grad()
        Give.apply(stage(Get.apply(like))).backward()
        optimizer.step()


def test_its_line_is_found_and_nothing_is_sent_or_received_twice(work, post):
    worker = work()
    trained()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert looked.site.source.rstrip().endswith("# the line"), looked
    assert (len(post.sent), post.came) == (2 * (BAD + 1), 2 * (BAD + 1))


def test_it_is_run_again_on_the_very_numbers_that_came(work, post):
    worker = work()
    trained()
    looked = worker.looked[0]
    assert "reconstructed" not in looked.facts
    assert looked.facts.get("complete") is not False


def test_what_was_written_over_since_is_not_taken_for_what_came(work, post, monkeypatch):
    """The memory that a message was laid in serves for the next one, too."""
    kept = torch.zeros(4, 3)
    monkeypatch.setattr(Get, "forward", staticmethod(lambda _, like: dist.recv(kept, 1) * 0.0 + kept + 0.0 * like))
    monkeypatch.setattr(Get, "backward", staticmethod(lambda *_: dist.recv(kept, 3) * torch.zeros(())))
    worker = work()
    trained()
    looked = worker.looked[0]
    assert looked.outcome == "refused", looked
    assert "what came then is not there any more" in looked.reason
