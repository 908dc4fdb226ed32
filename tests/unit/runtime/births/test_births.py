"""What the script writes before it trains: the call that made a weight bad is named, and nothing else is touched."""

import gc
import inspect
import math
import time
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader, TensorDataset

from nandiag.events import Looked, Note, ProbeDark
from nandiag.runtime.births.known import FINITE, LAST, OP, OUTSIDE, UNWRITTEN
from nandiag.runtime.births.record import CREDIT, Record
from nandiag.runtime.evidence import seen


def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def found(worker):
    looks = [look for look in worker.events(Looked) if look.outcome == "found"]
    assert worker.events(ProbeDark) == []
    return looks[0] if looks else None


def divided(layer):
    with torch.no_grad():
        layer.weight.div_(torch.zeros(()))


def logarithm(layer):
    layer.bias = nn.Parameter(torch.log(torch.tensor([-1.0, 0.0, 1.0])))


def copied(layer):
    layer.weight.data = torch.full((3, 4), 4.0).sub(5).sqrt()


def set_rows(layer):
    rows = torch.zeros(2, 4) / torch.zeros(2, 1)
    with torch.no_grad():
        layer.weight[1:] = rows


def custom_normal(layer):
    nn.init.normal_(layer.weight, std=math.inf)


@pytest.mark.parametrize(
    ("spoil", "name", "op"),
    [
        (divided, "weight", "aten.div_.Tensor"),
        (logarithm, "bias", "aten.log.default"),
        (copied, "weight", "aten.sqrt.default"),
        (set_rows, "weight", "aten.div.Tensor"),
        (custom_normal, "weight", "aten.normal_.default"),
    ],
)
def test_the_call_that_made_a_weight_bad_is_named(work, spoil, name, op):
    worker = work()
    layer = nn.Linear(4, 3)
    spoil(layer)
    train(layer)
    look = found(worker)
    assert (look.method, look.source, look.phase, look.site.op) == ("record", "op", "init", op)
    assert look.site.function == spoil.__name__
    assert look.facts["weight"] == name


def test_the_copy_of_a_bad_weight_leads_back_to_what_made_it(work):
    worker = work()
    teacher = nn.Linear(4, 3)
    divided(teacher)
    student = nn.Linear(4, 3)
    student.load_state_dict(teacher.state_dict())
    train(student)
    assert found(worker).site.function == "divided"


def test_what_was_mended_again_is_not_told(work):
    worker = work()
    layer = nn.Linear(4, 3)
    divided(layer)
    nn.init.zeros_(layer.weight)
    logarithm(layer)
    train(layer)
    assert found(worker).facts["weight"] == "bias"


def test_memory_that_nothing_filled(work):
    worker = work()
    layer = nn.Linear(4, 3)
    torch.use_deterministic_algorithms(True)
    try:
        rows = torch.empty(3, 4)
    finally:
        torch.use_deterministic_algorithms(False)
    rows[:2] = layer.weight.detach()[:2]
    layer.weight = nn.Parameter(rows)
    train(layer)
    assert found(worker).facts["birth"] == UNWRITTEN
    assert found(worker).site.source.strip() == "rows = torch.empty(3, 4)"


@pytest.mark.parametrize(("of_peers", "told"), [(False, True), (True, False)])
def test_data_with_a_part_that_nothing_filled_though_there_are_peers_that_could(work, monkeypatch, of_peers, told):
    monkeypatch.setattr(seen, "has_peers", lambda: True)
    worker = work()
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    torch.use_deterministic_algorithms(True)
    try:
        halo = torch.empty(1, 4)
        if of_peers:  # as a receive into it does
            worker.sentinel.capture.births.forget(halo)
        loss = layer(torch.cat([halo, torch.ones(2, 4)])).sum()
        loss.backward()
        optimizer.step()
    finally:
        torch.use_deterministic_algorithms(False)
    looked = worker.looked[0]
    assert (looked.facts.get("birth") == UNWRITTEN) is told
    assert (looked.site.source.strip() == "halo = torch.empty(1, 4)") is told
    assert ("as_filled" in looked.facts) is told


def test_a_file_that_held_it_already(work, tmp_path):
    torch.save({"weight": torch.full((3, 4), math.nan), "bias": torch.zeros(3)}, tmp_path / "bad.pt")
    worker = work()
    layer = nn.Linear(4, 3)
    layer.load_state_dict(torch.load(tmp_path / "bad.pt"))
    train(layer)
    look = found(worker)
    assert (look.phase, look.source, look.facts["key"]) == ("checkpoint", "outside", "weight")
    assert look.facts["file"] == str(tmp_path / "bad.pt")


def test_numbers_of_python_come_from_outside(work):
    worker = work()
    layer = nn.Linear(4, 3)
    layer.bias = nn.Parameter(torch.tensor([1.0, math.nan, 2.0]))
    train(layer)
    assert found(worker).facts["birth"] == OUTSIDE


def test_data_that_was_bad_before_the_first_step(work):
    worker = work()
    data = torch.zeros(8, 4) / torch.zeros(8, 1)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(data[2:4]).sum().backward()
    optimizer.step()
    look = found(worker)
    assert (look.phase, look.site.op, look.site.function) == (
        "data", "aten.div.Tensor", "test_data_that_was_bad_before_the_first_step",
    )  # fmt: skip
    assert "weight" not in look.facts


def test_the_sample_of_data_that_was_bad_before_the_first_step(work):
    worker = work()
    scale = torch.ones(8, 1)
    scale[5] = 0
    data = TensorDataset(torch.zeros(8, 4) / scale)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for (x,) in DataLoader(data, 3):
        layer(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    look = found(worker)
    assert (look.step, look.phase, look.site.op) == (1, "data", "aten.div.Tensor")
    assert look.facts["came_as"] == "TensorDataset[5]"


class Rows(torch.utils.data.Dataset):
    """Samples that numpy holds: row 5 is bad."""

    def __init__(self):
        self.rows = np.ones((8, 4), dtype="float32")
        self.rows[5, 2] = math.nan

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index])


def train_on(dataset):
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for batch in DataLoader(dataset, 8):
        layer(batch if torch.is_tensor(batch) else batch[0]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("dataset", [Rows(), TensorDataset(torch.from_numpy(Rows().rows))])
def test_the_sample_is_told_where_numpy_made_the_first_batch_bad(work, dataset):
    worker = work()
    train_on(dataset)
    look = found(worker)
    assert (look.method, look.facts["dataset"], look.facts["dataset_index"]) == ("replay", type(dataset).__name__, 5)
    assert "birth" not in look.facts


def test_where_data_of_python_numbers_came_into_torch_stands_beside_the_sample(work):
    worker = work()
    train_on(TensorDataset(torch.tensor([[1.0] * 4] * 5 + [[math.nan] * 4] * 3)))
    look = found(worker)
    assert (look.source, look.facts["dataset_index"]) == ("input", 5)
    assert look.facts["came_in"].rpartition(":")[0] == __file__


def test_what_was_joined_of_tensors_that_were_not_seen_bad_has_no_line(work):
    worker = work()
    layer = nn.Linear(4, 3)
    rows = torch.ones(1, 4)
    rows.numpy()[:] = math.nan  # torch does not see this write
    layer.weight = nn.Parameter(torch.cat([rows, rows, rows]))
    train(layer)
    look = found(worker)
    assert (look.source, look.inputs[0].name) == ("parameter", "weight")
    assert "birth" not in look.facts


def zeroed(layer):
    layer.weight.data[0] = 0.0


def scaled(layer):
    layer.weight.data *= 0.1


def zeroed_and_scaled(layer):
    zeroed(layer)
    scaled(layer)


@pytest.mark.parametrize("innocent", [zeroed, scaled, zeroed_and_scaled])
def test_a_write_that_torch_does_not_see_is_laid_to_no_later_line(work, innocent):
    worker = work()
    layer = nn.Linear(4, 3)
    layer.weight.detach().numpy()[1:] = math.inf
    innocent(layer)
    train(layer)
    look = found(worker)
    assert (look.source, look.inputs[0].name) == ("parameter", "weight")
    assert "birth" not in look.facts


def test_a_write_into_much_memory_is_only_the_last_one_seen(monkeypatch, work):
    worker = work()
    record = worker.capture.births.record
    weight = torch.zeros(512, 512)
    assert record.state_of(weight) is FINITE
    monkeypatch.setattr(Record, "_look_at_large", lambda *_: None)
    weight.numpy()[1:] = math.inf
    weight.mul_(0.1)
    assert record.birth_of(weight).how == LAST


def test_a_copy_of_much_memory_that_torch_did_not_see_written_is_no_birth(monkeypatch, work):
    worker = work()
    record = worker.capture.births.record
    table = torch.zeros(512, 512)
    assert record.state_of(table) is FINITE
    table.numpy()[1:] = math.inf
    monkeypatch.setattr(Record, "_look_at_large", lambda *_: None)
    layer = nn.Linear(512, 512)
    with torch.no_grad():
        layer.weight.copy_(table)
    assert record.birth_of(layer.weight).how == LAST


def test_what_was_bad_is_found_behind_what_is_gone(monkeypatch, work):
    worker = work()
    monkeypatch.setattr(Record, "_look_at_large", lambda *_: None)
    layer, donor = nn.Linear(512, 512), nn.Linear(512, 512)
    usage = torch.zeros(512, 1)
    share = usage / usage.sum()
    with torch.no_grad():
        layer.weight.copy_(layer.weight * (1 - share) + donor.weight * share)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(torch.ones(2, 512)).sum().backward()
    optimizer.step()
    look = found(worker)
    assert (look.method, look.site.source.strip()) == ("tape", "share = usage / usage.sum()")
    assert "not looked at" in look.reason


class Encoder(nn.Module):
    def forward(self, x):
        return torch.log(x)


def test_what_joins_the_outputs_of_a_module_is_not_blamed_for_them(work):
    worker = work()
    encoder = Encoder()
    with torch.no_grad():
        features = torch.cat([encoder(part) for part in torch.full((4, 4), -1.0).split(2)]) / 10
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(features).sum().backward()
    optimizer.step()
    look = found(worker)
    assert look.source == "input"
    assert "birth" not in look.facts


def test_nothing_is_seen_once_training_has_begun(work):
    worker = work()
    layer = nn.Linear(4, 3)
    train(layer)
    assert torch._C._len_torch_function_stack() == 1  # the window alone
    assert not worker.capture.births.prelude.on


def test_a_mask_is_no_harm(work):
    worker = work()
    layer = nn.Linear(4, 3)
    layer.register_buffer("mask", torch.full((3,), -math.inf))
    layer.register_buffer("scores", torch.log(torch.zeros(3)))
    train(layer)
    assert worker.events(Looked) == worker.harms == worker.events(Note) == []


def test_bits_and_generators_are_as_without(work):
    def build():
        torch.manual_seed(3)
        layer = nn.Linear(4, 3)
        divided(layer)
        custom_normal(layer)
        nn.init.xavier_uniform_(layer.weight)
        return [*layer.state_dict().values(), torch.rand(2), torch.get_rng_state()]

    plain = build()
    work()
    assert all(torch.equal(one, other) for one, other in zip(build(), plain, strict=True))


def test_no_tensor_is_kept_alive(work):
    worker = work()
    made = torch.zeros(1000) / torch.zeros(1000)
    large = torch.ones(1 << 17)
    weak = [weakref.ref(made), weakref.ref(large)]
    memory = StorageWeakRef(large.untyped_storage())
    del made, large
    gc.collect()
    assert [one() for one in weak] == [None] * 2
    assert memory.expired()
    assert worker.events(ProbeDark) == []


def test_so_many_calls_that_it_would_be_felt_end_it(work):
    worker = work()
    prelude = worker.capture.births.prelude
    prelude.record.spent = 1e9
    torch.ones(2) + 1
    assert prelude.shut
    assert prelude.cut_short
    layer = nn.Linear(4, 3)
    divided(layer)
    train(layer)
    assert torch._C._len_torch_function_stack() == 1
    assert [note.text for note in worker.events(Note) if "ceased to look" in note.text]


def test_that_it_ended_early_is_not_told_where_no_weight_was_bad(work):
    worker = work()
    worker.capture.births.prelude.record.spent = 1e9
    torch.ones(2) + 1
    train(nn.Linear(4, 3))
    assert worker.capture.births.prelude.cut_short
    assert worker.events(Note) == []


def test_a_large_tensor_is_looked_at_when_it_is_asked_for(monkeypatch, work):
    worker = work()
    record = worker.capture.births.record
    monkeypatch.setattr(Record, "left", lambda _: 0.0)
    layer = nn.Linear(512, 512)
    assert record.state_of(layer.weight) is not FINITE
    with torch.no_grad():
        layer.weight.fill_(math.nan)
    assert record.birth_of(layer.weight).how in {OP, LAST}
    assert record.birth_of(layer.weight).call.name == "fill_"


def test_the_last_write_between_steps_is_told_as_inferred(work, tmp_path):
    torch.save({"weight": torch.zeros(3, 4), "bias": torch.full((3,), math.inf)}, tmp_path / "bad.pt")
    worker = work()
    layer = nn.Linear(4, 3)
    train(layer)
    layer.load_state_dict(torch.load(tmp_path / "bad.pt"))
    train(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    look = found(worker)
    assert (look.method, look.step, look.facts["weight"], look.facts["birth"]) == ("tape", 1, "bias", LAST)
    assert look.site.source.strip().startswith("layer.load_state_dict(")


# ---------------------------------------------------------------------- memory that is filled bit by bit


class Memory:
    """Rows are put in one by one, before training and in it; what is drawn is drawn of all of them."""

    def __init__(self, rows):
        self.rows = torch.empty(rows, 4)  # handed out
        self.next = 0

    def put(self, row):
        self.rows[self.next] = row
        self.next += 1

    def put_by_view(self, row):
        self.rows[self.next].copy_(row)
        self.next += 1


@pytest.fixture
def filled():
    """Torch fills what it hands out with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def draws(memory, steps=6, put="put", whole_at=3, laid=torch.rand):
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        getattr(memory, put)(laid(4))
        x = memory.rows[torch.arange(len(memory.rows)) if step == whole_at else torch.arange(4)]
        loss = layer(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("put", ["put", "put_by_view"])
def test_memory_that_is_filled_bit_by_bit_leads_to_who_handed_it_out(work, filled, put):
    worker = work()
    memory = Memory(20)
    for _ in range(8):
        memory.put(torch.rand(4))
    draws(memory, put=put)
    look = found(worker)
    assert (look.facts["birth"], look.step) == (UNWRITTEN, 3)
    assert look.site.source.endswith("# handed out")


def test_a_bad_row_that_is_put_into_it_in_training_is_not_said_to_be_left(work, filled):
    worker = work()
    memory = Memory(20)
    for _ in range(8):
        memory.put(torch.rand(4))
    bad = iter([torch.rand(4), torch.rand(4), torch.full((4,), torch.nan), torch.rand(4)])
    draws(memory, steps=4, laid=lambda _: next(bad))
    assert found(worker).facts.get("birth") != UNWRITTEN


def test_what_was_given_to_numpy_may_have_been_written_there(work, filled):
    worker = work()
    memory = Memory(12)
    for _ in range(4):
        memory.put(torch.rand(4))
    memory.rows.numpy()[4:] = float("nan")
    draws(memory, steps=4)
    assert found(worker).facts["exposed"] is True


def test_a_row_that_is_chosen_to_be_written_is_no_use_of_the_rest(work, filled):
    worker = work()
    layer, bank = nn.Linear(4, 3), torch.empty(6, 3)  # handed out
    with torch.no_grad():
        for row in range(3):
            bank[row] = layer(torch.rand(4))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    (layer(torch.rand(2, 4)) @ bank.T).mean().backward()
    optimizer.step()
    look = found(worker)
    assert look.facts["birth"] == UNWRITTEN
    assert look.facts["first_used_by"] == "aten.mm.default"
    assert look.site.source.endswith("# handed out")


def test_very_many_tensors_of_numpys_memory_take_no_more_than_their_share(work):
    births = work().capture.births
    array = np.ones(4, dtype=np.float32)
    bare = inspect.unwrap(torch.from_numpy)
    looked = []
    births.record.saw = lambda *one: looked.append(one)
    began = time.thread_time()
    for _ in range(20_000):
        torch.from_numpy(array)
    passed = time.thread_time() - began
    assert bare is not torch.from_numpy
    assert births.prelude.on
    assert 0 < len(looked) < 10_000
    assert births.record.spent <= CREDIT + 0.02 * passed + 0.02


def test_memory_of_numpys_that_torch_takes_has_the_line_where_it_does(work):
    births = work().capture.births
    bad = torch.from_numpy(np.array([1.0, np.nan], dtype=np.float32))
    found = births.of(bad)
    assert (found.how, found.call.name) == ("outside", "from_numpy")
