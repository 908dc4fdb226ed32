"""Weights that came bad out of a file, whatever it was read by: the file and its key are named, and who wrote it."""

import math
import pickle
import sys
import textwrap

import pytest
import torch
import torch.distributed.checkpoint as sharded
from torch import nn

from nandiag.events import Looked, ProbeDark
from nandiag.runtime.frames import is_ours

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def train(model, steps=1, between=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        between(step)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def found(worker):
    assert worker.events(ProbeDark) == []
    return next(look for look in worker.events(Looked) if look.outcome == "found")


def bad_state():
    weight = torch.ones(3, 4)
    weight[1, 2] = math.nan
    return {"weight": weight, "bias": torch.zeros(3)}


def by_state_dict(layer, folder):
    state = {"model": layer.state_dict()}
    sharded.load(state, checkpoint_id=folder)
    layer.load_state_dict(state["model"])


def by_module(layer, folder):
    sharded.load({"model": layer}, storage_reader=sharded.FileSystemReader(folder))


def by_helpers(layer, folder):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    state = {"model": get_model_state_dict(layer)}
    sharded.load(state, checkpoint_id=folder)
    set_model_state_dict(layer, state["model"])


@pytest.mark.parametrize("load", [by_state_dict, by_module, by_helpers])
def test_a_sharded_checkpoint_is_named_with_its_key(work, tmp_path, load):
    sharded.save({"model": bad_state()}, checkpoint_id=tmp_path / "warm")
    worker = work()
    layer = nn.Linear(4, 3)
    load(layer, tmp_path / "warm")
    train(layer)
    look = found(worker)
    assert (look.phase, look.source, look.facts["birth"]) == ("checkpoint", "outside", "file")
    assert (look.facts["key"], look.facts["file"]) == ("model['weight']", str(tmp_path / "warm"))
    assert look.site.function == load.__name__


def test_what_a_sharded_checkpoint_held_finite_and_the_script_spoiled_is_its_own(work, tmp_path):
    sharded.save({"model": {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}}, checkpoint_id=tmp_path / "warm")
    worker = work()
    layer = nn.Linear(4, 3)
    by_state_dict(layer, tmp_path / "warm")
    with torch.no_grad():
        layer.weight[0] /= layer.bias[0]
    train(layer)
    assert (found(worker).facts["birth"], found(worker).source) == ("op", "op")


def saved_and_loaded(layer, save, load):
    """Train; save a bad average in one step, and load it in a later one."""

    def between(step):
        if step == 2:
            save({key: value / 0 for key, value in layer.state_dict().items()})  # the line
        elif step == 4:
            load()

    train(layer, steps=6, between=between)


def test_a_sharded_checkpoint_that_the_run_saved_bad_leads_to_what_made_it_so(work, tmp_path):
    worker = work()
    layer, folder = nn.Linear(4, 3), tmp_path / "last"
    saved_and_loaded(
        layer, lambda state: sharded.save({"model": state}, checkpoint_id=folder), lambda: by_state_dict(layer, folder)
    )
    look = found(worker)
    assert (look.site.op, look.facts["file"], look.facts["saved_step"]) == ("aten.div.Tensor", "last", 2)
    assert look.site.source.strip().startswith("save({key: value / 0")


@pytest.fixture
def safetensors(tmp_path, monkeypatch):
    """A stand-in with the names of the library: the real one is made in Rust, and is not needed by the tests."""
    package = tmp_path / "site" / "safetensors"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        textwrap.dedent("""\
        import pickle

        class safe_open:
            def __init__(self, filename, framework, device="cpu"):
                self.held = pickle.loads(open(filename, "rb").read())
            def __enter__(self): return self
            def __exit__(self, *words): return None
            def keys(self): return list(self.held)
            def get_tensor(self, name): return self.held[name]
            def get_slice(self, name): return Slice(self.held[name])

        class Slice:
            def __init__(self, whole): self.whole = whole
            def get_shape(self): return list(self.whole.shape)
            def __getitem__(self, where): return self.whole[where].clone()
        """)
    )
    (package / "torch.py").write_text(
        textwrap.dedent("""\
        import pickle
        from safetensors import safe_open

        def save_file(tensors, filename, metadata=None):
            with open(filename, "wb") as file:
                pickle.dump({key: tensor.clone() for key, tensor in tensors.items()}, file)

        def load_file(filename, device="cpu"):
            with safe_open(filename, framework="pt", device=device) as file:
                return {key: file.get_tensor(key) for key in file.keys()}
        """)
    )
    monkeypatch.syspath_prepend(str(package.parent))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        del sys.modules[name]


def whole(path):
    from safetensors.torch import load_file

    return load_file(path)


def by_key(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        assert isinstance(file, safe_open)
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, such a file has no iterator


def none_there(path):
    from safetensors import safe_open

    safe_open(path.with_name("none"), framework="pt")


def none_in_it(path):
    from safetensors import safe_open

    safe_open(path, framework="pt").get_tensor("none")


def none_of_a_part(path):
    from safetensors import safe_open

    safe_open(path, framework="pt").get_slice("bias")["none"]


def no_such_word(path):
    from safetensors import safe_open

    safe_open(path, framework="pt").none  # noqa: B018


@pytest.mark.parametrize("ask", [none_there, none_in_it, none_of_a_part, no_such_word])
def test_an_error_of_a_file_of_safetensors_shows_no_frame_of_ours(work, safetensors, tmp_path, ask):
    path = tmp_path / "warm.safetensors"
    path.write_bytes(pickle.dumps(bad_state()))
    work()
    with pytest.raises((OSError, LookupError, TypeError, AttributeError)) as caught:
        ask(path)
    assert [one for one in caught.traceback if is_ours(str(one.path))] == []


def test_a_file_of_safetensors_is_of_the_librarys_own_class(work, safetensors, tmp_path):
    import safetensors as library

    own = library.safe_open
    (tmp_path / "warm.safetensors").write_bytes(pickle.dumps(bad_state()))
    worker = work()
    file = library.safe_open(tmp_path / "warm.safetensors", framework="pt")
    assert library.safe_open is not own
    assert isinstance(file, own)
    assert isinstance(file, library.safe_open)
    assert isinstance(file.get_slice("bias"), library.Slice)
    assert worker.events(ProbeDark) == []


def by_slice(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        return {key: one[: one.get_shape()[0]] for key, one in slices.items()}


@pytest.mark.parametrize("load", [whole, by_key, by_slice])
def test_a_file_of_safetensors_is_named_with_its_key(work, safetensors, tmp_path, load):
    (tmp_path / "warm.safetensors").write_bytes(pickle.dumps(bad_state()))
    worker = work()
    layer = nn.Linear(4, 3)
    layer.load_state_dict(load(tmp_path / "warm.safetensors"))
    train(layer)
    look = found(worker)
    assert (look.phase, look.facts["birth"], look.facts["key"]) == ("checkpoint", "file", "weight")
    assert look.facts["file"] == str(tmp_path / "warm.safetensors")


def test_a_file_of_safetensors_that_the_run_saved_bad_leads_to_what_made_it_so(work, safetensors, tmp_path):
    worker = work()
    from safetensors import torch as files

    layer, path = nn.Linear(4, 3), tmp_path / "last"
    saved_and_loaded(
        layer, lambda state: files.save_file(state, path), lambda: layer.load_state_dict(files.load_file(path))
    )
    look = found(worker)
    assert (look.site.op, look.facts["file"], look.facts["saved_step"]) == ("aten.div.Tensor", "last", 2)
    assert look.site.source.strip().startswith("save({key: value / 0")


def by_torch(path):
    return torch.load(path)


@pytest.mark.parametrize("load", [by_torch, whole, by_key])
def test_at_level_op_a_file_is_named_with_its_key(work, safetensors, tmp_path, load):
    path = tmp_path / "warm.file"
    torch.save(bad_state(), path) if load is by_torch else path.write_bytes(pickle.dumps(bad_state()))
    worker = work(level="op")
    layer = nn.Linear(4, 3)
    layer.load_state_dict(load(path))
    train(layer)
    look = found(worker)
    assert (look.phase, look.facts["birth"], look.facts["key"]) == ("checkpoint", "file", "weight")
    assert (look.facts["file"], look.facts["weight"]) == (path.name, "weight")


def test_at_level_op_a_sharded_checkpoint_is_named_with_its_key(work, tmp_path):
    sharded.save({"model": bad_state()}, checkpoint_id=tmp_path / "warm")
    worker = work(level="op")
    layer = nn.Linear(4, 3)
    by_state_dict(layer, tmp_path / "warm")
    train(layer)
    assert (found(worker).facts["key"], found(worker).facts["file"]) == ("model['weight']", "warm")


def test_at_level_op_what_the_run_saved_bad_leads_to_what_made_it_so(work, tmp_path):
    worker = work(level="op")
    layer, path = nn.Linear(4, 3), tmp_path / "last.pt"
    saved_and_loaded(layer, lambda state: torch.save(state, path), lambda: layer.load_state_dict(torch.load(path)))
    look = found(worker)
    assert (look.site.op, look.facts["file"], look.facts["saved_step"]) == ("aten.div.Tensor", "last.pt", 2)
    assert look.site.source.strip().startswith("save({key: value / 0")


def test_a_bad_file_that_is_loaded_in_the_middle_of_a_run_is_named(work, tmp_path):
    torch.save({"model": bad_state()}, tmp_path / "best.pt")
    worker = work()
    layer = nn.Linear(4, 3)

    def between(step):
        if step == 3:
            layer.load_state_dict(torch.load(tmp_path / "best.pt")["model"])

    train(layer, steps=5, between=between)
    look = found(worker)
    assert (look.step, look.phase, look.facts["birth"]) == (3, "checkpoint", "file")
    assert (look.facts["key"], look.facts["file"]) == ("model['weight']", "best.pt")
