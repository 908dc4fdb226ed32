"""A script that leaves on its loss before backward, where the step cannot be run again: what it asked of is told."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.runtime.replay.case import Case

WHY = "this step cannot be run again"


def asks_isfinite(loss):
    return not torch.isfinite(loss)


def asks_isnan_of_a_detached_one(loss):
    return torch.isnan(loss.detach()).any()


def asks_a_number(loss):
    return not math.isfinite(loss.item())


def asks_with_a_flag(loss):
    return bool((~torch.isfinite(loss.detach())).float())


def leaves(asks, spoilt=3):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.ones(2, 4) if step != spoilt else torch.zeros(2, 4)
        loss = model(x / x.norm(dim=1, keepdim=True)).mean()
        if asks(loss) or (spoilt is None and step == 3):
            return model, optimizer
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def refuses(monkeypatch, outcome="refused"):
    monkeypatch.setattr(
        "nandiag.runtime.replay.examine.Examiner.examine", lambda self, case: Case.nothing(case, outcome, WHY)
    )


ALL = (asks_isfinite, asks_isnan_of_a_detached_one, asks_a_number, asks_with_a_flag)


@pytest.mark.parametrize("outcome", ["refused", "failed"])
@pytest.mark.parametrize("asks", ALL)
def test_what_was_asked_of_is_told_with_its_line_and_why_there_is_no_more(work, monkeypatch, asks, outcome):
    refuses(monkeypatch, outcome)
    worker = work()
    kept = leaves(asks)
    worker.sentinel.last.at_exit()
    (harm,), (looked,) = worker.harms, worker.looked
    assert (harm.what, harm.step, harm.phase, harm.left_on) == ("loss", 3, "loss", True)
    assert harm.tensors[0].nan == 1
    assert (looked.outcome, looked.reason, looked.site.op) == (outcome, WHY, None)
    assert looked.site.function == asks.__name__
    assert looked.site.source.strip().startswith("return ")
    assert kept


@pytest.mark.parametrize("asks", ALL)
def test_a_loss_that_was_finite_is_not_told(work, monkeypatch, asks):
    refuses(monkeypatch)
    worker = work()
    kept = leaves(asks, spoilt=None)
    worker.sentinel.last.at_exit()
    assert (worker.harms, worker.looked) == ([], [])
    assert kept


@pytest.mark.parametrize("asks", ALL)
def test_where_running_it_again_finds_the_line_that_is_all_that_is_told(work, asks):
    worker = work()
    kept = leaves(asks)
    worker.sentinel.last.at_exit()
    (harm,), (looked,) = worker.harms, worker.looked
    assert not harm.left_on
    assert looked.site.op == "aten.div.Tensor"
    assert kept


def test_an_error_of_something_else_is_not_of_what_was_asked(work, monkeypatch):
    refuses(monkeypatch)
    worker = work()
    kept = leaves(asks_isfinite)
    worker.sentinel.last.take(FileNotFoundError("no such file"))
    assert (worker.harms, worker.looked) == ([], [])
    assert kept


def test_an_error_of_numbers_that_names_none_is_of_what_was_asked(work, monkeypatch):
    refuses(monkeypatch)
    worker = work()
    kept = leaves(asks_a_number)
    worker.sentinel.last.take(RuntimeError("the loss is NaN"))
    assert [(one.what, one.left_on) for one in worker.harms] == [("loss", False)]
    assert worker.looked[0].reason == WHY
    assert kept


def test_why_what_an_error_speaks_of_was_not_run_again_is_told(work, monkeypatch):
    refuses(monkeypatch)
    worker = work()

    def left():
        loss = leaves_with_loss()
        if torch.isnan(loss):
            raise RuntimeError("the loss is NaN")

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def leaves_with_loss():
        return model(torch.full((2, 4), torch.nan)).mean()

    with pytest.raises(RuntimeError) as caught:
        left()
    worker.sentinel.last.take(caught.value)
    assert [(one.what, one.left_on) for one in worker.harms] == [("output", False)]
    assert [(one.outcome, one.reason) for one in worker.looked] == [("refused", WHY)]
    assert optimizer


class Counting(TorchDispatchMode):
    """Counts what is dispatched, as a counter of FLOPs would."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_sees_nothing_of_what_is_kept(work):
    counts = []
    for worker in (None, work):
        if worker is not None:
            worker()
        with Counting() as counting:
            kept = leaves(lambda loss: torch.isinf(loss) or (math.isnan((loss.detach() * math.inf).item()) and False))
        counts.append(counting.count)
        assert kept
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("by_method", [False, True], ids=["tensors", "method"])
def test_a_loss_that_no_call_of_a_module_made_is_known_by_what_the_script_asked(work, by_method):
    """Tensors of the loop's own, or a method of a module: neither is a call that the step would be known by."""
    worker = work()
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model.loss = lambda x: (x.log() * model.weight).mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        x = torch.full((2, 1), 1.5 - step)  # negative in the third step
        loss = model.loss(x) if by_method else (x.log() * model.weight).mean()
        if not torch.isfinite(loss):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worker.sentinel.last.at_exit()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 2, "aten.log.default"), looked
    assert [one.step for one in worker.harms] == [2]
