"""What is wrapped of torch is called as torch would call it, however it was made."""

import pytest

from nandiag.runtime.tape.wraps import on_class


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
