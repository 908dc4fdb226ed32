"""What came bad into a line has the script's own name told, where a frame that still runs holds it."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nandiag.events import Looked, ProbeDark

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")


class Keeper:
    def __init__(self):
        self.scale = torch.ones(())


def found(worker):
    assert worker.events(ProbeDark) == []
    return next(look for look in worker.events(Looked) if look.outcome == "found")


# NaN that no op of torch's made, and that nobody saw come into torch: it was there before anything was watched.
UNSEEN = torch.frombuffer(bytearray(b"\x00\x00\xc0\x7f"), dtype=torch.float32)


def test_what_bytes_brought_in_the_midst_of_training_is_told_by_that_line(work):
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(())
    for step in range(3):
        loss = (model(torch.randn(2, 4)) / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            scale = torch.frombuffer(bytearray(b"\x00\x00\xc0\x7f"), dtype=torch.float32)
    look = found(worker)
    assert (look.step, look.source, look.facts["script_name"]) == (2, "op", "scale")
    assert look.site.source.strip().startswith("scale = torch.frombuffer(")


def test_a_running_statistic_that_went_bad_after_the_step_before(work):
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scale = torch.ones(())
    for step in range(6):
        error = model(torch.randn(2, 4))
        loss = (error / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale = 0.9 * scale + 0.1 * error.std() if step != 3 else UNSEEN
        if step == 4:
            break
    look = found(worker)
    assert (look.step, look.source, look.facts["script_name"]) == (4, "outside", "scale")
    assert [(one.name, len(one.lines)) for one in look.site.around.written if one.name == "scale"] == [("scale", 2)]


def test_an_attribute_of_an_object(work):
    worker = work()
    model, keeper = nn.Linear(4, 1), Keeper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if step == 2:
            keeper.scale = UNSEEN
        loss = (model(torch.ones(2, 4)) * keeper.scale).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found(worker).facts["script_name"] == "keeper.scale"


def test_a_number_of_pythons(work):
    worker = work()
    model, factor = nn.Linear(4, 1), 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).square().mean() * factor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        factor *= math.inf if step == 1 else 1.0
        factor = factor - factor if step == 1 else factor
    assert (found(worker).site.op, found(worker).facts["script_name"]) == ("aten.mul.Tensor", "factor")


def test_a_name_that_no_frame_holds_any_more_is_not_guessed(work):
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(output, factor):
        return output.mean() * factor

    for _ in range(2):
        loss = loss_of(model(torch.ones(2, 4)), math.nan)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert "script_name" not in found(worker).facts


ACME = """
import torch
from torch import nn

class Angles(nn.Module):
    def forward(self, x):
        return torch.acos(x)
"""


def test_the_line_of_a_librarys_module_is_told_with_the_line_that_calls_it(work):
    worker = work()
    known = {"__name__": "acme"}
    exec(compile(ACME, "/x/site-packages/acme/angles.py", "exec"), known)  # noqa: S102
    model, angles = nn.Linear(1, 1), known["Angles"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    angles(model(torch.zeros(1, 1)) * 0 + 2).sum().backward()  # the line
    optimizer.step()
    look = found(worker)
    assert (look.site.file, look.site.line) == ("/x/site-packages/acme/angles.py", 7)
    file, _, line = look.facts["called_at"].rpartition(":")
    assert Path(file).read_text(encoding="utf-8").splitlines()[int(line) - 1].endswith("# the line")


def _of_rows(rows):
    return [torch.log(row) for row in rows]


def _of_nested(rows):
    return [sum(torch.log(one) for one in row) for row in rows]


@pytest.mark.parametrize("function", [_of_rows, _of_nested])
def test_a_line_in_a_comprehension_is_that_of_the_function_round_it(work, function):
    worker, weight = work(), torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch.stack(function(weight)).sum().backward()
    optimizer.step()
    assert worker.looked[0].site.function == function.__name__


class Centre(nn.Module):
    """Divides by a correction that is 0 at first; keeps its count as a number, too."""

    def __init__(self, dtype):
        super().__init__()
        self.beta, self.name, self.seen = 0.9, "centre", 0
        self.register_buffer("steps", torch.zeros((), dtype=dtype))
        self.register_buffer("mean", torch.zeros(1, dtype=dtype))

    def forward(self, x):
        self.seen += 1
        return x - self.mean / (1 - self.beta**self.steps) + 0 * len(self.name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_number_that_a_module_has_for_good_is_told_of_a_quotient_in_half_precision(work, dtype):
    worker = work()
    model = nn.Sequential(nn.Linear(4, 1, dtype=dtype), Centre(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4, dtype=dtype)).float().square().mean()
    loss.backward()
    optimizer.step()
    facts = found(worker).facts
    assert facts.get("numbers") == ({"self.beta": 0.9} if dtype is torch.bfloat16 else None)
