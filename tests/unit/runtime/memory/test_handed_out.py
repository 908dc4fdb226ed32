"""Memory that the loop was handed unwritten some steps ago, and filled in part."""

import math

import pytest
import torch
from torch import nn

from nandiag.runtime.memory import laid
from nandiag.runtime.memory.later.handed_out import HandedOut


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """Torch fills with NaN what it hands out: else it would be chance what lies there."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class History:
    def __init__(self, rows):
        self.rows = torch.empty(rows, 4)  # handed out
        self.filled = 0

    def add(self, row):
        self.rows[self.filled] = row
        self.filled += 1


def train(spoil=None, *, rows=512, all_of_it=False):
    """A history is made in step 2, written row by row, and read whole in step 4."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    history = None
    for step in range(6):
        if step == 2:
            history = History(rows)
            if all_of_it:
                history.rows.fill_(0.5)
        if step == 4 and spoil is not None:
            spoil(history.rows)
        x = torch.randn(3, 4)
        layer(x - history.rows.mean(0) if step >= 4 else x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if history is not None:
            history.add(x.mean(0))


def test_the_line_that_was_handed_it_is_told_and_no_write_is_blamed(work):
    worker = work()
    train()
    looked = worker.looked[0]
    assert looked.site.source.strip() == "self.rows = torch.empty(rows, 4)  # handed out", looked
    assert (looked.facts["birth"], looked.facts["handed_at_step"], looked.step) == ("unwritten", 2, 4)
    assert "written_in_place" not in looked.facts
    assert looked.reason == "no call was seen to write what is bad there"


@pytest.mark.parametrize("spoil", [
    lambda rows: rows.numpy().__setitem__(3, math.nan),
    lambda rows: rows.data.__setitem__(3, math.nan),
    lambda rows: rows.__setitem__(3, torch.tensor(math.nan)),
    lambda rows: rows.__setitem__(3, math.nan),
    lambda rows: rows[3].fill_(math.nan),
    lambda rows: rows[3].copy_(torch.tensor(math.nan), True),
    lambda rows: rows.masked_fill_(torch.eye(len(rows), 4).bool(), value=math.inf),
    lambda rows: rows.index_fill_(0, torch.tensor([0]), math.nan),
    lambda rows: rows[:2].fill_(0.0).div_(0.0),
    lambda rows: rows[:2].fill_(3e38).mul_(10.0),
    lambda rows: rows[:2].fill_(1.0).scatter_add_(0, torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), math.inf)),
], ids=[
    "numpy", "data", "a bad write", "number", "fill", "copy", "mask", "index", "quotient", "product", "sum",
])  # fmt: skip
@pytest.mark.parametrize("all_of_it", [False, True])
def test_what_others_may_have_written_is_not_said_to_be_unwritten(work, spoil, all_of_it):
    worker = work()
    train(spoil, all_of_it=all_of_it)
    assert worker.looked[0].facts.get("birth") != "unwritten", worker.looked[0]


def test_what_is_counted_up_in_memory_that_nobody_filled_is_told_as_such(work):
    worker = work()
    train(lambda rows: rows[3:5].add_(1.0).mul_(0.5))
    assert worker.looked[0].facts.get("birth") == "unwritten", worker.looked[0]


def test_sums_of_finite_numbers_are_no_doubt(work):
    worker = work()
    train(lambda rows: rows[:2].add_(1.0).clamp_(max=5.0))
    assert worker.looked[0].facts.get("birth") == "unwritten", worker.looked[0]


def test_nothing_is_kept_of_memory_that_is_gone(work):
    worker = work()
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(1500):
        out = torch.empty(8, 4)
        out[:4], out[4:] = 1.0, torch.ones(4)
        layer(out).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert worker.looked == []
    assert len(worker.capture.window.handed_out._made) <= 1024


def test_what_is_laid_there_from_a_device_is_not_read(monkeypatch):
    memory, looked = HandedOut(), []
    monkeypatch.setattr(laid, "is_bad", lambda one: looked.append(one) or False)
    rows = torch.empty(4, 4)

    def window():
        memory.out("empty", rows, 0)

    window()  # two frames above, the line that is looked at for "empty"
    memory.writes("__setitem__", rows, torch.ones(4))
    assert (len(looked), memory.known(rows) is not None) == (1, True)
    memory.writes("__setitem__", rows, torch.ones(4, device="meta"))
    assert (len(looked), memory.known(rows)) == (1, None)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2)

    def resize(self, rows, *, whole):
        table = torch.empty(rows, 2)  # the longer one
        table[:4] = self.table.weight.detach()
        if whole:
            table[4:] = 0.0
        self.table = nn.Embedding.from_pretrained(table, freeze=False)

    def forward(self, words):
        return self.table(words).square().mean()


@pytest.mark.parametrize("whole", [False, True])
def test_a_weight_that_grows_in_mid_run_has_the_line_that_was_handed_its_memory(work, whole):
    worker, model = work(), Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        if step == 3:
            model.resize(6, whole=whole)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.tensor([0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
    told = [(one.site.source.strip(), one.facts["weight"], one.facts["handed_at_step"]) for one in worker.looked[:1]]
    assert told == ([] if whole else [("table = torch.empty(rows, 2)  # the longer one", "table.weight", 3)])
