"""An error of ours never reaches the script, and a legal call of the script's blinds nothing."""

import pytest
import torch

from nandiag.events import ProbeDark


def fail(*_args, **_kwargs):
    raise ZeroDivisionError("a fault of ours")


def test_a_fault_within_a_closure_stays_ours(work, monkeypatch):
    worker = work()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    monkeypatch.setattr(worker.sentinel, "_looked_at", fail)

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


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch takes an edge as the root of a backward call from 2.7 on")
def test_backward_from_an_edge_of_the_graph(work):
    worker = work()
    model = torch.nn.Linear(2, 1)
    loss = model(torch.ones(3, 2)).sum()
    torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones(()))
    assert model.weight.grad is not None
    assert not worker.events(ProbeDark)


@pytest.mark.parametrize("name", ["grad", "grad_and_value"])
@pytest.mark.parametrize("has_aux", [False, True])
def test_functional_gradients_are_a_border_and_give_what_torch_gives(name, has_aux, work):
    def rate(weight, count):
        loss = (weight - count * torch.log(weight)).sum()
        return (loss, weight * 2) if has_aux else loss

    def ask():
        transform = getattr(torch.func, name)
        by_place = transform(rate, 0, has_aux)(torch.tensor([0.5, -1.0]), torch.ones(2))
        by_name = transform(func=rate, has_aux=has_aux)(torch.tensor([0.5, -1.0]), torch.ones(2))
        assert repr(by_place) == repr(by_name)
        return by_name

    plain = ask()
    worker = work()
    assert repr(ask()) == repr(plain)
    assert [(harm.what, harm.step) for harm in worker.harms] == [("loss", 0)]
    looked = worker.looked[0]
    assert looked.site.op == "aten.log.default"


@pytest.mark.parametrize("name", ["grad", "grad_and_value"])
@pytest.mark.parametrize("has_aux", [False, True])
def test_gradients_of_single_samples_are_a_border_and_give_what_torch_gives(name, has_aux, work):
    def rate(weight, count):
        loss = (weight - count * torch.log(weight)).sum()
        return (loss, weight * 2) if has_aux else loss

    def ask():
        transform = getattr(torch.func, name)(rate, has_aux=has_aux)
        first = torch.func.vmap(transform, (None, 0))(torch.tensor([0.5, -1.0]), torch.ones(3, 2))
        again = torch.vmap(transform, in_dims=(None, 0), chunk_size=2)(torch.tensor([0.5, -1.0]), torch.ones(3, 2))
        if name == "grad_and_value" or has_aux:
            return first, again
        return first, again, torch.vmap(transform, (None, 0), 1)(torch.tensor([0.5, -1.0]), torch.ones(3, 2))

    plain = ask()
    worker = work()
    assert repr(ask()) == repr(plain)
    assert [(harm.what, harm.step) for harm in worker.harms][:1] == [("loss", 0)]
    looked = worker.looked[0]
    assert looked.site.op == "aten.log.default"
    assert looked.site.function == "rate"
