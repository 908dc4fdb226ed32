"""A number that the script reads off a tensor and hands to an op later has the line that made it bad."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark


def trained(weigh, steps=3):
    """Train a layer on a loss times what ``weigh(step)`` returns."""
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        weight = weigh(step)
        loss = layer(torch.rand(4, 3)).square().mean() * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("read", [torch.Tensor.item, float])
def test_a_number_read_before_the_first_step_has_its_line_where_an_op_is_given_it(work, read):
    worker = work()
    counts = torch.zeros(4)
    share = counts.sum() / (counts > 0).sum()  # the line
    number = read(share)
    trained(lambda _: number)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.method) == ("found", "op", 0, "tape"), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.site.op == "aten.div.Tensor"
    assert "number of Python's" in looked.reason
    assert "test_numbers.py:" in looked.facts["used_at"]


def test_a_number_read_before_the_first_step_has_its_line_where_it_is_a_rate(work):
    worker = work()
    rate = (0.1 / torch.ones(1).std(correction=0)).item()  # the line
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = rate
    layer(torch.rand(4, 3)).square().mean().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase) == ("found", "op", "optimizer"), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts["number"] is True


def test_a_schedule_that_is_asked_before_the_first_call_of_the_model_has_its_line(work):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    warmup = torch.tensor(0.0)
    for step in range(3):
        progress = torch.tensor(float(step)) / warmup  # the line
        optimizer.param_groups[0]["lr"] = (0.1 * torch.minimum(progress, torch.ones(()))).item()
        optimizer.zero_grad()
        layer(torch.rand(4, 3)).square().mean().backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 0), looked
    assert looked.site.source.rstrip().endswith("# the line")


def test_a_number_read_between_two_steps_has_its_line(work):
    worker = work()

    def weigh(step):
        hits = torch.full((4,), float(step != 2))
        return (1 / hits.mean()).item()  # the line

    trained(weigh)
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", 2), looked
    assert looked.site.source.rstrip().endswith("# the line")


def test_where_several_lines_made_such_numbers_none_is_named(work):
    worker = work()
    first = (torch.ones(2) / torch.zeros(2)).max().item()
    second = torch.zeros(2).reciprocal().max().item()
    trained(lambda _: first)
    assert second == first
    looked = worker.looked[0]
    assert "* weight" in looked.site.source, looked


def test_a_number_that_the_line_itself_writes_is_its_own(work):
    worker = work()
    assert (torch.zeros(1) / torch.zeros(1)).item() != 0
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loss = layer(torch.rand(4, 3)).square().mean() * float("nan")
    loss.backward()
    optimizer.step()
    assert 'float("nan")' in worker.looked[0].site.source


def test_a_number_read_in_an_earlier_step_has_its_line_and_step(work):
    worker = work()
    weights = [1.0, 1.0]

    def weigh(step):
        hits = torch.full((4,), float(step != 2))
        weights.append((1 / hits.mean()).item())  # the line
        return weights[step]

    trained(weigh, steps=6)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.method) == ("found", "op", 4, "tape"), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts["made_at_step"] == 2


def test_where_several_steps_lines_made_such_numbers_none_is_named(work):
    worker = work()
    weights = [1.0, 1.0]

    def weigh(step):
        hits = torch.full((4,), float(step != 1))
        weights.append((1 / hits.mean()).item())
        weights.append((torch.ones(2) / hits[:2]).max().item())
        return weights[step]

    trained(weigh, steps=6)
    looked = worker.looked[0]
    assert "* weight" in looked.site.source, looked


def test_numbers_that_do_no_harm_are_looked_at_once_for_a_line(work, monkeypatch):
    worker = work()
    examiner, looks = worker.sentinel.looker.examiner, []
    look = examiner.examine_handed
    monkeypatch.setattr(examiner, "examine_handed", lambda case: looks.append(case) or look(case))

    def weigh(step):
        assert (torch.zeros(2) / torch.zeros(2)).mean().isnan().item()
        assert torch.zeros(2).log().sum().item() < 0
        assert torch.tensor(-1.0 - step).sqrt().item() != 0
        return 1.0

    trained(weigh, steps=8)
    assert worker.looked == []
    assert len(looks) <= 3
    assert worker.events(ProbeDark) == []


def test_neither_a_model_nor_the_generators_are_used_again_for_it(work):
    worker = work()
    ran = []

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            ran.append(1)
            return self.inner(x) * torch.rand(())

    def train(watched):
        torch.manual_seed(1)
        model = Counted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            out = model(torch.rand(4, 3))
            if watched:
                assert (torch.rand(2) * out.detach().sum() / 0.0).isnan().any().item() in {True, False}
                assert (out.detach().mean() / 0.0).item() != 0
            else:
                torch.rand(2)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
        return model.inner.weight.detach().clone(), torch.rand(1)

    first = train(watched=True)
    again = train(watched=False)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert len(ran) == 8
    assert worker.events(ProbeDark) == []
