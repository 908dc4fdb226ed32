"""Bad values that the loop stores where they outlive the step are led back to the line and step that made them."""

import pytest
import torch
from torch import nn


def unit(z):
    return z / z.norm(dim=1, keepdim=True)  # of zeros


def other(z):
    return z.sum(1, keepdim=True).log() * z


class Bank:
    def __init__(self):
        self.keys = torch.ones(64, 4)

    def put(self, at, made):
        self.keys[at : at + len(made)] = made

    def clear(self, at, made):
        self.keys.copy_(torch.ones(64, 4))
        self.put(at, made)


def trained(bank, makes, *, steps=12, used=9):
    """Store two rows in each step, which are read from step ``used`` on; ``makes`` tells what makes those of a step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.rand(2, 4)
        z = model(x)
        with torch.no_grad():
            make, write = makes.get(step, (None, bank.put))
            write(2 * step, unit(x) if make is None else make(x * 0.0))
        negatives = bank.keys[: 2 * step] if step >= used else bank.keys[40:]
        loss = (z @ negatives.T).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("short", [True, False])
def test_what_is_stored_bad_has_its_line_and_step_when_it_is_used(work, short):
    worker, bank = work(on_anomaly="stop"), Bank()
    worker.capture.tape.jots.on = short
    with pytest.raises(SystemExit):
        trained(bank, {3: (unit, bank.put)})
    looked = worker.looked[0]
    assert (looked.site.op, looked.step, looked.facts["made_at_step"]) == ("aten.div.Tensor", 9, 3), looked
    assert looked.site.source.endswith("# of zeros")
    assert looked.inputs[1].zeros == 2


def test_where_two_lines_stored_bad_values_none_is_blamed(work):
    worker, bank = work(on_anomaly="stop"), Bank()
    with pytest.raises(SystemExit):
        trained(bank, {3: (unit, bank.put), 5: (other, bank.put)})
    assert "made_at_step" not in worker.looked[0].facts
    assert worker.looked[0].source == "outside"


def test_what_was_written_over_as_a_whole_is_forgotten(work):
    worker, bank = work(on_anomaly="stop"), Bank()
    with pytest.raises(SystemExit):
        trained(bank, {3: (unit, bank.put), 5: (other, bank.clear)})
    assert worker.looked[0].facts["made_at_step"] == 5


def test_what_is_stored_and_never_used_is_no_harm(work):
    worker, bank = work(on_anomaly="stop"), Bank()
    trained(bank, {3: (unit, bank.put)}, used=99)
    assert worker.harms == worker.looked == []


class Growing(nn.Module):
    """A bank that takes more and more of the room reserved for it, as its buffer."""

    def __init__(self, rows):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.room = torch.ones(rows, 4)
        self.register_buffer("kept", self.room[:4])

    def forward(self, x):
        return self.body(x)

    def put(self, made):
        end = len(self.kept) + len(made)
        self.room[len(self.kept) : end] = made
        self.kept = self.room[:end]


@pytest.mark.parametrize("rows", [100, 10_000])  # of so many no copy is kept to make the write again
@pytest.mark.parametrize("behind", [True, False])
def test_a_buffer_of_any_size_that_bad_values_are_stored_in_has_the_line_that_made_them(work, rows, behind):
    worker, model = work(), Growing(rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.rand(2, 4)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if behind:
            optimizer.step()
        model.put(unit(x * 0.0 if step == 5 else x))
        if not behind:
            optimizer.step()
    assert [(harm.what, harm.step) for harm in worker.harms] == [("buffer", 5 + behind)]
    looked = worker.looked[0]
    assert (looked.site.op, looked.step) == ("aten.div.Tensor", 5 + behind), looked
    assert looked.site.source.endswith("# of zeros")


def test_a_weight_that_lies_in_much_memory_has_the_line_that_made_what_was_stored_there(work):
    worker, memory = work(), torch.ones(10_000, 4)
    rows = nn.Embedding(100, 4)
    rows.weight = nn.Parameter(memory[:100])
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.01)
    for step in range(8):
        if step == 5:
            memory[100:101] = unit(torch.zeros(1, 4))
            rows.weight = nn.Parameter(memory[:101])
            optimizer.param_groups[0]["params"] = list(rows.parameters())
        loss = rows(torch.arange(10)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [(harm.what, harm.step) for harm in worker.harms] == [("parameter", 5)]
    assert worker.looked[0].site.op == "aten.div.Tensor", worker.looked


def test_a_frozen_weight_that_is_given_bad_memory_has_the_line_that_gave_it(work):
    """As averages of weights are laid into a teacher, whose own values no step made."""
    worker, model, teacher = work(), nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.rand(2, 4)
        loss = (model(x) - teacher(x)).square().mean() if step < 2 else model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.weight.data = model.weight.detach() / torch.tensor(float(step != 5))  # an average of none
    assert [(harm.what, harm.step) for harm in worker.harms] == [("frozen", 6)]
    (looked,) = worker.looked
    assert (looked.method, looked.site.op) == ("replay", "aten.div.Tensor"), looked
    assert looked.site.source.endswith("# an average of none")


class Centred(nn.Module):
    """Takes an average off its input, which lies in a buffer or in a weight that is not trained."""

    def __init__(self, kind, width):
        super().__init__()
        self.inner = nn.Linear(width, 2)
        if kind == "buffer":
            self.register_buffer("middle", torch.zeros(width))
        else:
            self.middle = nn.Parameter(torch.zeros(width), requires_grad=False)

    def forward(self, x):
        return self.inner(x - self.middle)


@pytest.mark.parametrize("kind", ["buffer", "frozen"])
@pytest.mark.parametrize("width", [4, 20_000])  # what is large is not kept as it was
def test_memory_that_is_given_to_what_is_not_trained_has_the_line_that_made_it(work, kind, width):
    worker, model = work(), Centred(kind, width)
    optimizer = torch.optim.SGD(model.inner.parameters(), lr=0.01)
    for step in range(7):
        x = torch.rand(2, width)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before = model.middle.data_ptr(), model.middle.clone()
        optimizer.step()
        assert model.middle.data_ptr() == before[0]  # whatever was run again
        torch.testing.assert_close(model.middle, before[1], rtol=0, atol=0, equal_nan=True)
        few = x[: 2 * (step != 4)]
        model.middle.data = 0.5 * model.middle.data + few.mean(0)  # of no rows
    looked = worker.looked[0]
    op = "aten.mean.dim" if width == 4 else ".data"
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 5, op), looked
    assert looked.site.source.endswith("# of no rows")


def test_a_table_of_the_loop_that_is_given_memory_has_the_line_that_made_it(work):
    worker, model, table = work(), nn.Linear(4, 2), torch.zeros(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(7):
        loss = (model(torch.rand(2, 4)) - table[torch.tensor([0, 2])]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        table.data = table.data + 1.0 / torch.tensor([2.0, 1.0, float(step != 4)]).unsqueeze(1)  # a count of 0
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 5, "aten.reciprocal.default"), looked
    assert looked.site.source.endswith("# a count of 0")


def with_average(table, h):
    """The average before is another name for its memory, and stays what it was."""
    before = table.data
    table.data = 0.9 * table.data + 0.1 * h.detach()
    return (table - before).norm()


def with_view(table, h):
    part = table[:2]
    table.data = torch.zeros(3)
    return 1.0 / part.sum()


def with_graph(table, h):
    table.data = torch.sqrt(h.square())  # steep at 0, and cut off here
    return table.sum().detach()


def with_alias(table, h):
    other = torch.ones(3)
    table.data = other.data
    other[0] = 2.0
    return table[0]


@pytest.mark.parametrize("gives", [with_average, with_view, with_graph, with_alias])
def test_what_a_tensor_was_before_it_was_given_other_memory_is_no_origin(work, gives):
    worker, model, table = work(), nn.Linear(4, 3), torch.ones(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(7):
        h = model(torch.rand(2, 4)).sum(0)
        factor = gives(table, h)
        loss = (h / factor).square().mean() * torch.sqrt(torch.tensor(1.0 - 2.0 * (step == 5)))  # the line
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch._C.DisableTorchFunction():
            table.data = torch.ones(3)
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 5, "aten.sqrt.default"), looked
    assert looked.site.source.endswith("# the line")


def test_state_that_is_loaded_from_memory_has_the_line_that_made_it(work):
    worker, model = work(), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(8):
        loss = model(torch.rand(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 5:
            state = optimizer.state_dict()
            for one in state["state"].values():
                one["exp_avg"] = torch.zeros_like(one["exp_avg"]) / one["step"].sub(6.0)  # by nothing
            optimizer.load_state_dict(state)
    assert worker.harms[0].what == "optimizer_state"
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 6, "aten.div.Tensor"), looked
    assert looked.site.source.endswith("# by nothing")


class Least:
    def __init__(self):
        self.low = torch.full((4,), 9.0)

    def take(self, x):
        self.low = torch.minimum(self.low, x.min(0).values)  # takes it in


def scaled(least, rows):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, x in enumerate(rows.split(2)):
        least.take(x)
        loss = model(torch.nan_to_num(x) - (least.low if step > 5 else 0.0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_what_was_bad_before_the_first_step_has_the_line_and_step_that_took_it_in(work):
    worker, least = work(on_anomaly="stop"), Least()
    torch.manual_seed(0)
    rows = torch.rand(24, 4)
    rows[2 * 3 + 1, 1] = torch.nan
    with pytest.raises(SystemExit):
        scaled(least, rows)
    looked = worker.looked[0]
    assert (looked.step, looked.facts["made_at_step"], looked.site.source.strip()[:4]) == (6, 3, "rows"), looked
    first = Least.take.__code__.co_firstlineno
    assert looked.facts["taken_at"][1] == first + 1
