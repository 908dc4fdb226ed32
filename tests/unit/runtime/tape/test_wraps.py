"""What is wrapped of torch is called as torch would call it, however it was made."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.tape.loop.window import Window
from nandiag.runtime.tape.wraps import on_class
from nandiag.runtime.tape.wraps.one_call import as_compiled


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x * 2

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 2


class Python(dict):
    @classmethod
    def of(cls, *keys, value=None):
        return cls.fromkeys(keys, value)


@pytest.mark.parametrize(
    ("method", "args", "kwargs"),
    [(dict.__dict__["fromkeys"], (("a", "b"), 1), {}), (Python.__dict__["of"], ("a", "b"), {"value": 1})],
    ids=["C", "Python"],
)
def test_a_class_method_gets_the_class_that_it_is_called_on(method, args, kwargs):
    made = on_class(method)(Python, *args, **kwargs)
    assert (type(made), made) == (Python, {"a": 1, "b": 1})


@pytest.mark.slow
def test_what_dynamo_traces_by_itself_is_one_graph(work):
    """As torch.export and torch._dynamo.explain trace: nothing has told us that a module will be called."""
    import torch._dynamo

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    work()
    with torch.compiler.set_stance("default"):  # a test that watched ops has left that nothing be compiled
        told = torch._dynamo.explain(lambda x: model(x).sum())(torch.ones(2, 4))
    assert (told.graph_count, told.graph_break_count) == (1, 0)


@pytest.mark.parametrize("name", ["open", "close", "pass_by", "go_on"])
def test_a_window_that_fails_is_the_scripts_affair_nowhere(name, work, monkeypatch):
    def fails(*_):
        raise RuntimeError("broken")

    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rate, compiled = torch.optim.lr_scheduler.StepLR(optimizer, 1), as_compiled(worker.capture, torch.exp)
    with monkeypatch.context() as broken:
        broken.setattr(Window, name, fails)
        for _ in range(2):
            optimizer.zero_grad()
            compiled(Doubled.apply(model(torch.ones(1, 2)))).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
    assert worker.events(ProbeDark)


def test_a_scalers_look_at_gradients_is_one_call_however_many_there_are(work):
    capture = work().capture
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(40)))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=4.0)
    calls = []
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
        before = capture.window.calls
        scaler.unscale_(optimizer)
        calls.append(capture.window.calls - before)
        scaler.step(optimizer)
        scaler.update()
    assert max(calls) < 10
    assert not capture.narrow
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
    scaler.unscale_(optimizer)
    (entry,) = (one for one in capture.tape.entries if one.name == "_unscale_grads_")
    assert entry.in_place
    assert entry.frames[0].code.co_name == "test_a_scalers_look_at_gradients_is_one_call_however_many_there_are"
