"""A warning that the script is given stands where it would without us, and is shown as often."""

import gc
import sys
import traceback
import warnings
import weakref
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional

from nandiag.runtime import stacklevel, tracebacks


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        warnings.warn("from forward", stacklevel=2)
        warnings.warn("from what called the module", stacklevel=4)
        return functional.softmax(self.layer(x))


class Script:
    """Is warned again and again, at one line after another."""

    def __init__(self):
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def closure(self):
        warnings.warn("from the closure", stacklevel=2)
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(torch.ones(2, 4)), torch.ones(4))
        loss.backward()
        return loss

    def run(self, *, by_c=True):
        for _ in range(3):
            self.optimizer.step(self.closure)
            helped(self.model(torch.ones(2, 4)))
        helped(torch.ones(2))
        functional.l1_loss(torch.ones(2), torch.ones(1, 2))
        functional.l1_loss(torch.ones(2), torch.ones(1, 2))
        if by_c:
            self.by_c()

    def by_c(self):
        """C++ warns as of the Python frame that is the innermost."""
        for _ in range(2):
            torch.tensor(self.model(torch.ones(2, 4)))
            torch.tensor(self.model(torch.ones(2, 4)))
            warnings.warn("from the end of the stack", stacklevel=1000)


def helped(x):
    """Warn of the caller, as helpers do that know no better."""
    warnings.warn("from a helper", DeprecationWarning, stacklevel=2)
    return functional.l1_loss(x, x[None])


def heard(script, action="default", category=Warning):
    """Return where it was warned of what, one after another, from a registry that knows nothing."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            vars(module).pop("__warningregistry__", None)
    warnings.onceregistry.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter(action, category)
        script.run()
    return [(str(one.message), one.category, one.filename, one.lineno) for one in told]


@pytest.mark.parametrize("action", ["default", "always", "once", "module", "ignore"])
def test_each_is_told_of_the_line_that_it_would_be(action, work):
    without = heard(Script(), action)
    worker = work()
    assert heard(Script(), action) == without
    assert heard(Script(), action) == without
    assert without or action == "ignore"
    assert not worker.looked


def test_a_filter_by_the_name_of_a_module_is_followed(work):
    def told(script):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", module=__name__)
            warnings.filterwarnings("ignore", module="torch|sys")
            script.run(by_c=False)

    told(Script())
    work()
    told(Script())


def test_an_error_that_a_filter_makes_of_it_shows_nothing_of_ours(work):
    script = Script()
    work()
    heard(script)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Using a target size") as caught:
            functional.l1_loss(script.model.layer(torch.ones(4)), torch.ones(1, 4))
    tracebacks.hide_own_frames(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "/nandiag/runtime/" not in shown
    assert shown.count("in l1_loss") == 1


def test_a_function_that_warns_is_scripted_and_compiled_as_before(work):
    work()
    scripted = torch.jit.script(warns)
    assert scripted(torch.ones(2)).tolist() == [2, 2]
    assert "aten::warn" in str(scripted.graph)


def warns(x: torch.Tensor) -> torch.Tensor:
    """Warn, and double ``x``."""
    warnings.warn("scripted", stacklevel=1)
    return x * 2


def test_what_torchscript_knows_by_its_id_lives_on_when_it_is_taken_off(work, monkeypatch):
    monkeypatch.setattr(warnings, "warn", warnings.warn)
    work()
    wrap = weakref.ref(warnings.warn)
    monkeypatch.undo()
    gc.collect()
    assert wrap() is not None  # else another function of that id would be taken for a warning


WRONG = [
    (["wrong"], {"stacklevel": "two"}), (["wrong"], {"category": int}), (["wrong"], {"stacklevel": 10**30}),
    (["wrong"], {"foo": 1}), ([], {}), ([], {"foo": 1}), ([], {"category": UserWarning}),
    (["wrong", None, 1, None, 5], {}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "named"), WRONG)
def test_what_warn_does_not_take_it_still_does_not(given, named, work):
    with pytest.raises((TypeError, OverflowError)) as plain:
        warnings.warn(*given, **named)
    work()
    with pytest.raises(type(plain.value)) as caught:
        warnings.warn(*given, **named)
    assert str(caught.value) == str(plain.value)
    assert "in _refused" not in "".join(traceback.format_exception(caught.value))


def test_what_was_taken_by_its_name_before_torch_was_there_is_told_of_the_same_line(work, monkeypatch):
    def begin():
        monkeypatch.setattr(stacklevel, "_EARLY", [])
        stacklevel.begin()
        monkeypatch.setitem(globals(), "early", warnings.warn)
        work()
        assert warnings.warn is early

    told = []
    for before in (lambda: None, begin):
        before()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            Early()(torch.ones(2))
        told.append([(one.filename, one.lineno) for one in seen])
    assert told[0] == told[1]


early = warnings.warn


class Early(nn.Module):
    """Warns by a name of its own."""

    def forward(self, x):
        for level in range(1, 7):
            early("early", UserWarning, level)
        return x
