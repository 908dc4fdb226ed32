"""The very first step of a script that has no optimizer, nor calls a module: what it computes is taped too."""

import torch

from nandiag.events import ProbeDark


def step(by_grad, back):
    weight = torch.randn(3, 1).requires_grad_()
    inputs = torch.randn(8, 3)
    rows = torch.randperm(8)[:4]
    score = inputs[rows] @ weight
    loss = (score * (0.0 if back else 1e3)).sigmoid().mul(-1).add(1).log().mean() if not back else root(score)
    if by_grad:
        return torch.autograd.grad(loss, weight)
    return loss.backward()


def root(score):
    return (score - score).square().sum().sqrt()  # the root


def looked(worker):
    worker.sentinel.finish()
    assert not worker.events(ProbeDark)
    return worker.looked[0]


def test_what_breaks_in_its_forward_is_found(work):
    worker = work()
    step(by_grad=False, back=False)
    found = looked(worker)
    assert (found.outcome, found.source, found.step, found.site.op) == ("found", "op", 0, "aten.log.default"), found


def test_so_is_what_breaks_in_its_backward_by_autograd_grad(work):
    worker = work()
    step(by_grad=True, back=True)
    found = looked(worker)
    assert (found.outcome, found.source, found.phase) == ("found", "op", "backward"), found
    assert found.site.source.rstrip().endswith("# the root")


def test_what_a_script_with_modules_computes_before_them_is_let_go_of(work):
    worker = work()
    scale = torch.ones(3, requires_grad=True)
    for _ in range(8):
        scale.square().sum()
    assert worker.capture.tape.entries
    torch.nn.Linear(3, 1)(torch.ones(2, 3))
    assert len(worker.capture.tape.entries) == 1
    assert not worker.harms


def test_nothing_is_taped_before_gradients_flow(work):
    worker = work()
    data = torch.randn(64, 3)
    (data / data.std(0)).requires_grad_()
    torch.nn.init.normal_(torch.nn.Linear(3, 3).weight)
    assert not worker.capture.window.on
    assert not worker.capture.tape.entries
