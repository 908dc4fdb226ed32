"""Checkpoints that the run itself saved bad: what made them so is named when they are loaded again, masks are none."""

import io
import math
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader as loader
from torch.distributed.checkpoint import state_dict_saver as saver

from nandiag.events import Looked, Next, ProbeDark
from nandiag.runtime.births.record import Record


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.full((3,), 6e4))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf, 0.0]))

    def forward(self, x):
        return self.layer(x) + self.seen / self.seen.sum() + 0 * self.mask.clamp(min=-1)


class Averaging(Net):
    def forward(self, x):
        self.seen.lerp_(x.detach().mean(), 1e-6)
        return super().forward(x)


def train(path, compact, steps=6, moved=None, kind=Net):
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        model.seen += 5000
        if step == 1:
            torch.save({"model": compact(model.state_dict())}, moved or path)
            if moved:
                moved.replace(path)
        if step == 3:
            model.load_state_dict(torch.load(path)["model"])
    return model


def halved(state):
    return {key: value.half() for key, value in state.items()}  # the line


def found(worker):
    assert worker.events(ProbeDark) == []
    looks = [look for look in worker.events(Looked) if look.outcome == "found"]
    return looks[0] if looks else None


@pytest.mark.parametrize("own", [True, False])
def test_a_checkpoint_that_is_kept_in_memory_is_known_when_it_is_loaded(work, own):
    """By what it holds; one that this run has not saved is told with the step behind which it was loaded."""
    worker, model, blob = work(), Net(), b""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        model.seen += 5000
        if step == 1:
            file = io.BytesIO()
            torch.save({"model": halved(model.state_dict()), "own": own}, file)
            blob = file.getvalue() + (b"" if own else b" ")
        if step == 3:
            model.load_state_dict(torch.load(io.BytesIO(blob))["model"])
    look = found(worker)
    assert look.step == 4
    assert look.facts["loaded_step"] == 4
    assert (look.site.source.endswith("# the line"), look.facts.get("saved_step")) == (
        (True, 2) if own else (False, None)
    )


def test_what_made_a_saved_weight_bad_is_named_when_it_is_loaded(work, tmp_path):
    worker = work()
    train(tmp_path / "last.pt", halved, moved=tmp_path / "last.tmp")
    look = found(worker)
    assert (look.step, look.method, look.site.op, look.site.function) == (
        4,
        "record",
        "aten._to_copy.default",
        "<dictcomp>" if sys.version_info < (3, 11) else "halved",  # older Pythons tell nothing more
    )
    assert look.facts["weight"] == "seen"
    assert (look.facts["saved_step"], look.facts["file"]) == (2, "last.pt")
    assert look.facts["saved_at"].startswith("test_saves.py:")


def test_a_buffer_that_is_averaged_in_place_is_told_as_it_was_loaded(work, tmp_path):
    """The op was given the file's +Inf; what it made of that, in the same memory, is NaN."""
    worker = work()
    train(tmp_path / "last.pt", halved, kind=Averaging)
    look = found(worker)
    assert (look.step, look.site.op, look.facts["weight"]) == (4, "aten._to_copy.default", "seen")
    assert (look.facts["saved_step"], look.facts["loaded_step"]) == (2, 4)
    assert worker.events(Next) == []  # no line of the step is the one to mend


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 1e5]))
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) * self.scale * 1e-5


def loaded(path, model):
    model.load_state_dict(torch.load(path))


def test_a_run_that_goes_on_with_a_new_model_from_its_own_file_is_told_what_made_that_bad(work, tmp_path):
    """The load writes into weights between steps, and what it read is gone when the next one begins."""
    worker = work()
    for attempt in range(2):
        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if attempt:
            loaded(tmp_path / "last.pt", model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
        torch.save(halved(model.state_dict()), tmp_path / "last.pt")
    look = found(worker)
    assert (look.step, look.facts["weight"], look.facts["saved_step"]) == (3, "scale", 3)
    assert look.site.source.endswith("# the line")


def test_a_file_loaded_into_a_new_model_is_named_where_its_optimizer_begins_with_what_was_bad_there(work, tmp_path):
    """The weight is Inf before the first update of the new optimizer, and the cast that made it so is the line."""
    worker = work(max_replays=0)  # as where ranks could only run the step again together
    for turn in range(2):
        model = nn.Linear(4, 3)
        with torch.no_grad():
            model.weight[1, 2] = 1e5
        if turn:
            model.load_state_dict({key: one.float() for key, one in torch.load(tmp_path / "half.pt").items()})
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)) * 1e-4).square().mean().backward()
            optimizer.step()
        torch.save(halved(model.state_dict()), tmp_path / "half.pt")
    looked = found(worker)
    assert looked is not None
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts["weight"] == "weight"


def test_a_state_that_is_saved_whole_is_no_matter(work, tmp_path):
    worker = work()
    train(tmp_path / "last.pt", dict)
    assert found(worker) is None
    assert worker.capture.births.saves.any is False


def test_what_was_saved_bad_and_never_loaded_says_nothing(work, tmp_path):
    worker = work()
    train(tmp_path / "last.pt", halved, steps=3)
    assert found(worker) is None


def test_saving_changes_neither_the_file_nor_the_generators(work, tmp_path):
    def noisy(state):
        return {key: value / 0 + torch.randn(()) for key, value in state.items()}

    states = []
    for _ in range(2):
        torch.manual_seed(5)
        train(tmp_path / "last.pt", noisy, steps=3)
        states.append((torch.get_rng_state(), torch.load(tmp_path / "last.pt")["model"]["mask"]))
        work()
    assert torch.equal(states[0][0], states[1][0])


def test_a_checkpoint_is_looked_at_while_there_is_time(work, tmp_path, monkeypatch):
    worker = work()
    monkeypatch.setattr(Record, "left", lambda _: 0.0)
    train(tmp_path / "last.pt", halved, steps=3)
    assert worker.capture.births.saves._files == {}


def folded(layer, std):
    return {"0.weight": layer.weight * (1 / std)[:, None], "0.bias": layer.bias.detach()}  # the line


def test_a_file_that_was_saved_and_loaded_before_training_has_the_line_under_another_name(work, tmp_path):
    worker = work()
    torch.save(folded(nn.Linear(4, 3), torch.tensor([1.0, 0.0, 2.0])), tmp_path / "folded.pt")
    state = torch.load(tmp_path / "folded.pt")
    model = nn.Linear(4, 3)
    model.load_state_dict({key.replace("0.", ""): value for key, value in state.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    look = found(worker)
    assert (look.site.op, look.site.function, look.facts["file"]) == ("aten.reciprocal.default", "folded", "folded.pt")
    assert look.facts["saved_at"].startswith("test_saves.py:")


def test_a_file_that_is_there_from_before_is_named_itself(work, tmp_path):
    torch.save({"weight": torch.full((3, 4), math.nan), "bias": torch.zeros(3)}, tmp_path / "old.pt")
    worker = work()
    model = nn.Linear(4, 3)
    model.load_state_dict(torch.load(tmp_path / "old.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    look = found(worker)
    assert (look.facts["birth"], look.facts["key"]) == ("file", "weight")
    assert "saved_at" not in look.facts


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_another_thread_saves_was_asked_for_where_it_was_made_bad(work, tmp_path, alone):
    worker = work()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if step == 1:
            average = {key: value * 0 / torch.zeros(()) for key, value in model.state_dict().items()}  # an average
            done = saver.async_save({"model": average}, checkpoint_id=tmp_path / "last")
        if step == 3:
            done.result()
            state = {"model": model.state_dict()}
            loader.load(state, checkpoint_id=tmp_path / "last")
            model.load_state_dict(state["model"])
    look = found(worker)
    assert look.site.source.endswith("# an average")
    assert (look.site.op, look.facts["saved_step"], look.facts["file"]) == ("aten.div.Tensor", 2, "last")
    assert look.facts["saved_at"].startswith("test_saves.py:")


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(70000.0))

    def forward(self, x):
        return x.mean() * self.by


def test_a_weight_of_one_number_is_known_by_its_dotted_name_and_the_best_loss_is_none(work):
    worker = work()
    model = nn.Sequential(Scale())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.ones(3)).backward()
        optimizer.step()
        if step == 1:
            file, best = io.BytesIO(), io.BytesIO()
            torch.save({"model": halved(model.state_dict())}, file)
            torch.save({"best_loss": torch.tensor(math.inf)}, best)
        if step == 3:
            model.load_state_dict(torch.load(io.BytesIO(file.getvalue()))["model"])
    look = found(worker)
    assert (look.facts["weight"], look.facts["saved_step"], look.facts["loaded_step"]) == ("0.by", 2, 4)
    saves = worker.capture.births.saves
    assert [key for saved in saves._files.values() for key in saved.bad] == ["model['0.by']"]


def test_a_file_is_not_blamed_for_a_weight_that_was_seen_finite_since_it_was_loaded(work, tmp_path):
    worker, model = work(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        if step == 1:
            torch.save({key: value * torch.nan for key, value in model.state_dict().items()}, tmp_path / "last.pt")
            state = torch.load(tmp_path / "last.pt")
            with torch.no_grad():
                model.weight.copy_(torch.nan_to_num(state["weight"]))
        if step == 4:
            model.weight.data.numpy()[:] = float("nan")
    look = found(worker)
    assert look.step == 5
    assert "file" not in look.facts, look


def scaled(model, factor, *, by_data):
    with torch.no_grad():
        for one in model.parameters():
            (one.data if by_data else one).mul_(factor)
    return halved(model.state_dict())


@pytest.mark.parametrize("by_data", [False, True])
def test_what_was_written_into_weights_before_a_save_is_not_written_twice(by_data, work, tmp_path):
    def trained():
        torch.manual_seed(3)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            if step == 2:
                torch.save({"model": scaled(model, 1e7, by_data=by_data)}, tmp_path / "one.pt")
                model.load_state_dict({key: one / 1e7 for key, one in model.state_dict().items()})
        return torch.nn.utils.parameters_to_vector(model.parameters()).tolist(), model

    plain, _ = trained()
    worker = work()
    assert trained()[0] == plain
    assert worker.events(ProbeDark) == []
    model = nn.Linear(4, 3)
    model.load_state_dict(torch.load(tmp_path / "one.pt")["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    look = found(worker)
    assert look.site.op == "aten._to_copy.default"
    assert look.site.line == halved.__code__.co_firstlineno + 1
    assert look.inputs[0].max < 1e7  # once by 1e7, and not twice
