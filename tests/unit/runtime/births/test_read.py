"""What was read from a file may be finite and wrong: it is known whence it is until something else writes there."""

import pytest
import torch
from torch import nn

from nandiag.events import Looked, ProbeDark
from nandiag.runtime.births.files.read import FromFiles
from nandiag.runtime.births.known import Call, Filed

VARIANCE = "1.running_var"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


def loaded(path, optimizer=None):
    """Return a model whose running variance lies below 0 in the file that it is loaded from."""
    model = net()
    model.load_state_dict(torch.load(path))
    return model


def train(model, optimizer=None, steps=1):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


def found(worker):
    assert worker.events(ProbeDark) == []
    return next(look for look in worker.events(Looked) if look.outcome == "found")


@pytest.fixture
def bad_file(tmp_path):
    state = net().state_dict()
    state[VARIANCE] = torch.linspace(-0.5, 1.0, 6)
    torch.save(state, tmp_path / "net.pt")
    return str(tmp_path / "net.pt")


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_variance_below_0_is_told_with_the_file_it_was_read_from(work, bad_file, steps_before):
    worker = work()
    model = loaded(bad_file)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, steps_before)
    model[1].eval()
    train(model, optimizer)
    path, key, file, line = found(worker).facts["read_from"][VARIANCE]
    assert (path, key, file) == (bad_file, VARIANCE, __file__)
    assert line == loaded.__code__.co_firstlineno + 3


@pytest.mark.parametrize("between", [False, True])
def test_what_the_script_has_written_since_is_its_own(work, bad_file, between):
    worker = work()
    model = loaded(bad_file)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if between:
        train(model, optimizer)
    with torch.no_grad():
        model[1].running_var.sub_(2.0)
    model[1].eval()
    train(model, optimizer)
    assert VARIANCE not in found(worker).facts.get("read_from", {})


def test_the_state_of_an_optimizer_is_told_with_its_file(work, tmp_path):
    model = net()
    first = {index: torch.full(one.shape, -0.1) for index, one in enumerate(model.parameters())}
    state = {
        index: {"step": torch.tensor(3.0), "exp_avg": one * one, "exp_avg_sq": one} for index, one in first.items()
    }
    groups = torch.optim.Adam(model.parameters()).state_dict()["param_groups"]
    torch.save({"state": state, "param_groups": groups}, tmp_path / "adam.pt")
    worker = work()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(torch.load(tmp_path / "adam.pt"))
    train(model, optimizer)
    path, key, *_ = found(worker).facts["read_from"]["exp_avg_sq"]
    assert (path, key) == (str(tmp_path / "adam.pt"), "state[0]['exp_avg_sq']")


def test_a_copy_of_a_part_or_of_something_else_is_not_what_was_read():
    files, read, target = FromFiles(), torch.ones(4), torch.zeros(4)
    assert not files
    files.put(read, Filed(Call("load", ()), "w", None))
    files.wrote("copy_", (target, read), target)
    assert files.told([("target", target)])
    files.wrote("copy_", (target, read[:1]), target)
    assert files.told([("target", target)]) == {}
    files.wrote("copy_", (target, read), target)
    files.wrote("mul_", (target, read), target)
    assert files.told([("target", target), ("read", read)]).get("read_from", {}).keys() == {"read"}
