"""Models that are called within transforms of torch.func from the first call on."""

import traceback

import pytest
import torch
from torch import nn

from nandiag.events import History, ProbeDark


@pytest.mark.parametrize("level", ["step", "op"])
def test_a_module_that_is_first_called_within_vmap_darkens_nothing(work, level):
    worker = work(level=level)
    member = nn.Linear(3, 2)
    weights = {name: torch.stack([one.detach()] * 2).requires_grad_() for name, one in member.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    out = torch.vmap(lambda one, x: torch.func.functional_call(member, one, (x,)), (0, None))(weights, torch.ones(4, 3))
    (out.sum() / torch.zeros(())).backward()
    optimizer.step()
    assert worker.events(ProbeDark) == []
    assert worker.looked[0].site.op == "aten.div.Tensor"


def field(net, x):
    return net(x) * (x * x).sum(-1, keepdim=True).sqrt()  # singular


def forwards(net, x):
    return torch.func.jvp(lambda y: field(net, y), (x,), (torch.ones_like(x),))[1]


def backwards(net, x):
    out, pull = torch.func.vjp(lambda y: field(net, y), x)
    return pull(torch.ones_like(out))[0]


def backwards_with_more(net, x):
    out, pull, more = torch.func.vjp(lambda y: (field(net, y), y.sum()), x, has_aux=True)
    assert more == x.sum()
    return pull(torch.ones_like(out), retain_graph=False)[0]


def train(way, bad=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(5):
        x = torch.randn(5, 3)
        if step == bad:
            x[2] = 0.0
        loss = way(net, x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [one.detach().clone() for one in net.parameters()]


@pytest.mark.parametrize("way", [forwards, backwards, backwards_with_more])
def test_a_derivative_that_is_asked_for_at_once_is_run_again(work, way):
    worker = work()
    train(way)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 3), looked
    assert looked.site.source.strip().endswith("# singular")


@pytest.mark.parametrize("way", [forwards, backwards, backwards_with_more])
def test_a_derivative_comes_out_as_without(work, way):
    plain = train(way, bad=None)
    worker = work()
    assert all(map(torch.equal, plain, train(way, bad=None)))
    assert (worker.harms, worker.events(ProbeDark)) == ([], [])


@pytest.mark.parametrize("way", [forwards, backwards])
def test_a_derivative_within_a_graph_is_torchs_own(work, way):
    """Dynamo would trace what wraps it."""
    import torch._dynamo

    work()
    net = nn.Linear(3, 3)
    with torch.compiler.set_stance("default"):  # a test that watched ops has left that nothing be compiled
        compiled = torch.compile(lambda x: way(net, x), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(2, 3)), way(net, torch.ones(2, 3)))
    torch._dynamo.reset()


def fails(_):
    raise KeyError("a word of the script")


def pulls(_):
    _, pull = torch.func.vjp(torch.sin, torch.ones(2))
    pull(torch.ones(3))


@pytest.mark.parametrize("raises", [lambda: torch.func.vjp(fails, torch.ones(2)), lambda: pulls(None)])
def test_an_error_within_a_derivative_shows_no_frame_of_ours(work, raises):
    def frames():
        with pytest.raises((KeyError, RuntimeError)) as caught:
            raises()
        return [(one.filename, one.name) for one in traceback.extract_tb(caught.value.__traceback__)]

    plain = frames()
    work()
    assert frames() == plain


@pytest.mark.parametrize("transform", ["jacobian", "hessian", "vjp", "jvp"])
def test_derivatives_by_autograd_functional_are_no_steps_and_no_losses(work, transform):
    worker = work()
    start = torch.tensor([0.5, 0.1, 0.0])

    def residuals(weights):
        made = weights[0] * torch.exp(weights[1] * torch.arange(4.0)) + weights[2]
        return made.square().sum() if transform == "hessian" else made

    def ask():
        take = getattr(torch.autograd.functional, transform)
        if transform in {"vjp", "jvp"}:
            return take(residuals, start, torch.ones(4 if transform == "vjp" else 3))
        return take(residuals, start)

    for _ in range(3):
        ask()
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (weight - start).square().sum().backward()
        optimizer.step()
    ended = worker.sentinel.finish()
    told = worker.events(History)[-1]
    assert (ended.steps, told.step) == (2, (0, 1))


def test_a_gradient_taken_by_hand_beside_them_is_a_step_yet(work):
    worker = work()
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad((weight * 2).sum(), weight)
        with torch.no_grad():
            weight -= 0.1 * gradient
    assert worker.sentinel.finish().steps == 2
