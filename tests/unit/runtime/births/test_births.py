"""What the script writes before it trains: the call that made a weight bad is named, and nothing else is touched."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.events import Looked, Note, ProbeDark
from nandiag.runtime.births.known import FILE, FINITE, LAST, OP, UNWRITTEN
from nandiag.runtime.births.record import Record
from tests.unit.runtime.births.told import found, train


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


def test_a_file_that_held_it_already(work, tmp_path):
    torch.save({"weight": torch.full((3, 4), math.nan), "bias": torch.zeros(3)}, tmp_path / "bad.pt")
    worker = work()
    layer = nn.Linear(4, 3)
    layer.load_state_dict(torch.load(tmp_path / "bad.pt"))
    train(layer)
    look = found(worker)
    assert (look.phase, look.source, look.facts["key"]) == ("checkpoint", "outside", "weight")
    assert look.facts["file"] == str(tmp_path / "bad.pt")


def test_a_file_that_held_bad_state_of_an_optimizer_already(work, tmp_path):
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg_sq"][1] = math.nan
    torch.save({"weights": layer.state_dict(), "state": saved}, tmp_path / "bad.pt")
    worker = work(on_anomaly="continue")
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(layer.parameters())
    loaded = torch.load(tmp_path / "bad.pt")
    layer.load_state_dict(loaded["weights"])
    optimizer.load_state_dict(loaded["state"])
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    look = found(worker)
    assert (look.phase, look.facts["weight"], look.facts["weight_is"]) == (
        "checkpoint", "exp_avg_sq of weight", "optimizer state",
    )  # fmt: skip
    assert look.facts["key"] == "state['state'][0]['exp_avg_sq']"
    assert look.site.source.strip() == 'loaded = torch.load(tmp_path / "bad.pt")'


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


@pytest.mark.parametrize(("of_file", "told"), [(True, ("record", FILE)), (False, ("tape", LAST))])
def test_the_last_write_between_steps_is_told_as_inferred_where_it_is_of_no_file(work, tmp_path, of_file, told):
    bad = {"weight": torch.zeros(3, 4), "bias": torch.full((3,), math.inf)}
    torch.save(bad, tmp_path / "bad.pt")
    kept = [bad]
    del bad
    worker = work()
    layer = nn.Linear(4, 3)
    train(layer)
    layer.load_state_dict(torch.load(tmp_path / "bad.pt") if of_file else kept.pop())
    train(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    look = found(worker)
    assert (look.step, look.facts.get("weight"), look.method, look.facts.get("birth")) == (1, "bias", *told), look
    assert look.site.source.strip().startswith("layer.load_state_dict(")


def test_what_is_not_looked_at_may_have_no_version(work, monkeypatch):
    """What lies on a device is not waited for, and inference mode counts no versions."""
    monkeypatch.setattr(Record, "_look", lambda *_: (None, None))
    worker = work()
    with torch.inference_mode():
        table = torch.zeros(4).add(1)
        table.mul_(2)
    train(nn.Linear(4, 3))
    assert worker.events(ProbeDark) == []
    assert table.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("frozen", [True, False])
def test_of_two_models_with_the_same_names_the_one_that_is_not_trained_is_told_as_such(work, frozen):
    worker = work()
    student, teacher = nn.Linear(4, 3), nn.Linear(4, 4)
    teacher.requires_grad_(not frozen)
    with torch.no_grad():
        teacher.weight.copy_(torch.zeros(4, 4) / torch.zeros(()))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    student(teacher(torch.ones(2, 4))).square().sum().backward()
    optimizer.step()
    look = found(worker)
    assert (look.facts["weight"], look.facts["weight_is"]) == ("weight", ("untrained " if frozen else "") + "parameter")
