"""A sharded checkpoint that does not hold all that it is asked for: what it passes over stays as it was handed out."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.body = nn.Linear(4, 4)
        self.add_module(name, nn.Linear(4, 3))

    def forward(self, x):
        return getattr(self, self.name)(self.body(x).relu())


@pytest.fixture(autouse=True)
def filled():
    """Memory that is handed out unwritten is NaN, whatever lay there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def train(model, steps=1):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
        optimizer.step()


def resumed(folder, name):
    with torch.device("meta"):
        model = Net(name)
    model.to_empty(device="cpu")  # the line
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))  # the load
    model.load_state_dict(state)
    return model


def saved(model, folder):
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    return folder


@pytest.mark.parametrize("steps", [0, 3])
def test_what_it_passes_over_has_the_line_that_handed_it_out(work, tmp_path, steps):
    worker, first = work(), Net("head")
    train(first, steps)
    train(resumed(saved(first, tmp_path / "kept"), "classifier"))
    looked = worker.looked[0]
    assert looked.site.source.strip().endswith("# the line"), looked
    assert (looked.facts["birth"], looked.facts["weight"]) == ("unwritten", "classifier.weight")
    assert (looked.facts["missing_key"], looked.facts["missing_in"]) == ("model.classifier.weight", "kept")


def test_what_it_holds_bad_is_told_to_be_read(work, tmp_path):
    worker, first = work(), Net("head")
    train(first, 3)
    torch.nn.init.constant_(first.head.weight, torch.nan)
    train(resumed(saved(first, tmp_path / "kept"), "head"))
    looked = worker.looked[0]
    assert looked.facts["birth"] != "unwritten", looked
    assert "missing_key" not in looked.facts


class Tied(nn.Module):
    """What goes out of it is by the weights of what comes in."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.head = nn.Linear(4, 3, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x.abs().sum(1).long() % 3))


def test_of_weights_that_are_tied_one_name_is_enough(work, tmp_path):
    worker, weight = work(), torch.randn(3, 4)
    weight[1, 2] = torch.nan
    dcp.save({"embed.weight": weight}, checkpoint_id=tmp_path / "kept")
    with torch.device("meta"):
        model = Tied()
    model = model.to_empty(device="cpu")
    model.head.weight = model.embed.weight
    state = model.state_dict()
    dcp.load(state, checkpoint_id=tmp_path / "kept", planner=DefaultLoadPlanner(allow_partial_load=True))
    train(model)
    assert "missing_key" not in worker.looked[0].facts
    assert worker.looked[0].facts["birth"] != "unwritten", worker.looked[0]


class Named(DefaultLoadPlanner):
    """Remembers what it was to load, and looks for it as torch's does."""

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.names = list(state_dict)


def test_a_planner_that_looks_as_torchs_does_passes_over_what_the_checkpoint_lacks_too(work, tmp_path):
    worker, first = work(), Net("head")
    saved(first, tmp_path / "kept")
    model = Net("classifier").to_empty(device="cpu")
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path / "kept", planner=Named(allow_partial_load=True))
    train(model)
    looked = worker.looked[0]
    assert (looked.facts["birth"], looked.facts["weight"]) == ("unwritten", "classifier.weight")
    assert looked.facts["missing_key"] == "model.classifier.weight"


def test_of_what_numpy_was_given_since_the_load_is_not_told_to_have_left_it_so(work, tmp_path):
    worker, first = work(), Net("head")
    saved(first, tmp_path / "kept")
    model = resumed(tmp_path / "kept", "classifier")
    values = model.classifier.weight.detach().numpy()
    values[:] = 0.1
    values[1] = float("nan")
    train(model)
    assert worker.looked[0].facts["exposed"] is True
    assert "missing_key" not in worker.looked[0].facts


class Renaming(DefaultLoadPlanner):
    """Looks for each tensor under the name that a wrapper has given it."""

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.asked = {f"module.{name}": one for name, one in state_dict.items()}

    def create_local_plan(self):
        held, self.state_dict = self.state_dict, self.asked
        plan = super().create_local_plan()
        self.state_dict = held
        return plan

    def lookup_tensor(self, index):
        return self.asked[index.fqn]


def test_a_planner_of_the_scripts_own_may_look_under_other_names(work, tmp_path):
    worker, first = work(), Net("head")
    torch.nn.init.constant_(first.head.weight, torch.nan)
    dcp.save({f"module.{name}": one for name, one in first.state_dict().items()}, checkpoint_id=tmp_path / "kept")
    model = Net("head").to_empty(device="cpu")
    dcp.load(model.state_dict(), checkpoint_id=tmp_path / "kept", planner=Renaming(allow_partial_load=True))
    train(model)
    assert [harm.what for harm in worker.harms[:1]] == ["parameter"]
    known = [one.facts for one in worker.looked]
    assert not any("missing_key" in one or one.get("birth") in {"unwritten", "file"} for one in known), known
