"""A script whose environment tells no rank, and that ends before its first backward: it would have trained."""

import pytest
import torch
from torch import nn

from nandiag.events import Attached, Finished, Harm, Looked, Raised
from nandiag.runtime.inject import ending
from nandiag.runtime.recorder import RECORDER
from nandiag.store.layout import rank_path


@pytest.fixture
def alone(work, monkeypatch):
    monkeypatch.setitem(ending._state, "raised", False)
    worker = work(attach=False)
    RECORDER.alone = True
    return worker


def end_by(error):
    ending._record(type(error), error, error.__traceback__)


def refuse(made):
    if torch.isnan(made).any():
        raise RuntimeError("made is NaN")


def raise_on_nan():
    """Give the error that a first step ends by, whose line has a 0/0."""
    model, x = nn.Linear(3, 3), torch.zeros(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        made = model(x / x.sum())
        refuse(made)
    except RuntimeError as error:
        return optimizer, error


def test_a_raise_in_the_first_step_is_told_with_its_line(alone):
    optimizer, error = raise_on_nan()
    end_by(error)
    assert optimizer is not None
    attached, *events = alone.events(Attached, Harm, Looked, Raised)
    assert isinstance(attached, Attached)
    assert {type(one) for one in events} == {Harm, Looked, Raised}
    assert alone.looked[0].site.source.strip() == "made = model(x / x.sum())"


def test_an_error_of_a_model_without_an_optimizer_is_told(alone):
    model = nn.Linear(3, 3)
    model(torch.ones(2, 3))
    end_by(ValueError("no more"))
    assert [type(one) for one in alone.events(Attached, Raised)] == [Attached, Raised]


def test_what_called_no_model_is_no_rank(alone):
    torch.ones(2) / 0
    end_by(ValueError("no more"))
    assert not alone.events()


def test_what_starts_the_ranks_is_none(alone):
    rank_path(alone.folder, 0, 0).touch()
    optimizer, error = raise_on_nan()
    end_by(error)
    assert optimizer is not None
    assert not alone.events()


def test_a_child_of_the_script_is_none(alone):
    RECORDER.alone = False
    optimizer, error = raise_on_nan()
    end_by(error)
    assert optimizer is not None
    assert not alone.events()


@pytest.mark.parametrize("asks", [True, False])
def test_a_script_that_leaves_in_its_first_forward_is_told(alone, asks):
    model, x = nn.Linear(3, 3), torch.zeros(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(x / x.sum()).mean() if asks else None
    if asks:
        assert torch.isnan(loss)
    ending.at_exit()
    assert optimizer is not None
    assert bool(alone.events(Attached, Harm, Finished)) is asks
    assert bool(alone.harms) is asks
