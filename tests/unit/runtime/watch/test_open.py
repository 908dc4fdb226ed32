"""An error of ours never reaches the script, and a legal call of the script's blinds nothing."""

import torch

from nandiag.events import ProbeDark


def fail(*_args, **_kwargs):
    raise ZeroDivisionError("a fault of ours")


def test_a_fault_within_a_closure_stays_ours(work, monkeypatch):
    worker = work()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    monkeypatch.setattr(worker.sentinel, "_sight", fail)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert [event.probe for event in worker.events(ProbeDark)] == ["sentinel"]


def test_a_fault_at_an_optimizers_birth_stays_ours(work, monkeypatch):
    worker = work()
    monkeypatch.setattr(worker.sentinel.weights, "met", fail)
    torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    assert [event.probe for event in worker.events(ProbeDark)] == ["sentinel"]


def test_backward_from_an_edge_of_the_graph(work):
    worker = work()
    model = torch.nn.Linear(2, 1)
    loss = model(torch.ones(3, 2)).sum()
    torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones(()))
    assert model.weight.grad is not None
    assert not worker.events(ProbeDark)
