"""Names as the script's author knows them: no wrapper's prefix in them, and none of the author's own words lost."""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from nandiag.runtime.names import class_name, find_roots, is_wrapper, owners, walk


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)


class DistributedDataParallel(nn.Module):
    """Stands in for the real one, which needs a process group; it is known by its class's name."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class FullyShardedDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._fsdp_wrapped_module = module


class OptimizedModule(nn.Module):
    """As ``torch.compile`` wraps a module; importing the real one takes seconds."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


def names(root):
    return [name for name, _ in walk(root)]


def tensor_names(root):
    return sorted(owner.fqn for owner in owners([root]).values())


def test_a_plain_tree():
    model = nn.Sequential(Block(), nn.ReLU())
    assert names(model) == ["", "0", "0.fc", "1"]
    assert tensor_names(model) == ["0.fc.bias", "0.fc.weight"]


def test_wrappers_take_no_part_in_names():
    plain = names(nn.Sequential(Block(), Block()))
    for wrapped in (
        DistributedDataParallel(nn.Sequential(Block(), Block())),
        OptimizedModule(nn.Sequential(Block(), Block())),
        FullyShardedDataParallel(nn.Sequential(FullyShardedDataParallel(Block()), checkpoint_wrapper(Block()))),
        DistributedDataParallel(OptimizedModule(nn.Sequential(checkpoint_wrapper(OptimizedModule(Block())), Block()))),
    ):
        assert names(wrapped) == plain
        assert tensor_names(wrapped) == ["0.fc.bias", "0.fc.weight", "1.fc.bias", "1.fc.weight"]
        assert is_wrapper(wrapped)


def test_an_attribute_called_module_is_the_authors_own():
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = Block()

    assert names(Adapter()) == ["", "module", "module.fc"]
    assert names(DistributedDataParallel(Adapter())) == ["", "module", "module.fc"]
    assert not is_wrapper(Adapter())


def test_a_shared_module_and_a_tied_weight_keep_the_first_name():
    model = nn.Module()
    model.encoder = nn.Embedding(3, 2)
    model.decoder = nn.Linear(2, 3, bias=False)
    model.decoder.weight = model.encoder.weight
    model.again = model.encoder
    assert names(model) == ["", "encoder", "decoder"]
    (owner,) = owners([model]).values()
    assert (owner.fqn, owner.module, owner.module_class, owner.root_class, owner.kind) == (
        "encoder.weight", "encoder", "Embedding", "Module", "parameter",
    )  # fmt: skip


def test_a_module_that_holds_itself_ends():
    model = Block()
    model.fc.parent = [model]
    model.add_module("me", model)
    assert names(model) == ["", "fc"]


def test_children_that_are_none_and_buffers():
    model = nn.Module()
    model.nothing = None
    model.register_module("empty", None)
    model.norm = nn.BatchNorm1d(2, affine=False)
    kinds = {owner.fqn: owner.kind for owner in owners([model]).values()}
    assert kinds["norm.running_mean"] == "buffer"


def test_the_larger_root_names_what_two_share():
    small = Block()
    large = nn.Sequential(small, Block())
    assert {owner.fqn for owner in owners([small, large]).values()} == {
        "0.fc.weight", "0.fc.bias", "1.fc.weight", "1.fc.bias",
    }  # fmt: skip


def test_the_names_within_a_flat_parameter():
    flat = nn.Parameter(torch.ones(4))
    flat._fqns = ("fc.weight", "fc.bias")
    model, unit = nn.Module(), nn.Module()
    unit.register_parameter("_flat_param", flat)
    model.layer = FullyShardedDataParallel(unit)
    assert [owner.fqn for owner in owners([model]).values()] == ["layer.fc.weight, layer.fc.bias"]


def test_roots_are_modules_that_no_other_holds():
    child = Block()
    parent, alone = nn.Sequential(child), Block()
    found = {id(one) for one in find_roots()}
    assert {id(parent), id(alone)} <= found
    assert id(child) not in found
    assert id(child.fc) not in found


def test_a_proxy_is_not_asked_what_it_is():
    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    proxy = Proxy()
    find_roots()
    assert type(proxy) is Proxy


def test_a_scripted_module_is_walked_like_any_other():
    """Its `_modules` is no dict: iterating it raises."""
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert not is_wrapper(scripted)
    assert [name for name, _ in walk(scripted)] == ["", "0", "1"]


def test_a_class_that_fsdp2_puts_in_a_modules_place_has_the_scripts_name():
    class FSDPModule:
        """Stands in for torch's own, which needs a process group."""

    block = Block()
    block.__class__ = type("FSDPBlock", (FSDPModule, Block), {})
    assert (class_name(block), class_name(Block()), class_name(nn.Linear(1, 1))) == ("Block", "Block", "Linear")
