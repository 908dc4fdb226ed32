"""What modules and the script keep from call to call is after a replay as it was."""

# ruff: noqa: ARG002 - scripts print, use every generator, and not all that they are given

import collections
import contextlib
import weakref

import pytest
import torch

from nandiag.runtime.memory import overwritten
from nandiag.runtime.public import AnomalyStop
from tests.unit.runtime.replay.traces.keeping import Keeper, bits, everything, nothing_moved, train

# ---------------------------------------------------------------------- what modules keep


class Carried:
    """Attributes that a forward moves, by the way it does so."""

    def number(self, module, out):
        module.calls = getattr(module, "calls", 0) + 1

    def tensor(self, module, out):
        module.last = out.detach() + getattr(module, "last", 0)

    def tensor_in_place(self, module, out):
        module.__dict__.setdefault("sum", torch.zeros(3, 4)).add_(out.detach())

    def listed(self, module, out):
        module.__dict__.setdefault("seen", []).append(out.detach())

    def counted(self, module, out):
        module.__dict__.setdefault("count", collections.Counter())["calls"] += 1

    def mapped(self, module, out):
        table = module.__dict__.setdefault("table", {})
        table[f"call {len(table)}"] = out.detach()

    def queued(self, module, out):
        module.__dict__.setdefault("queue", collections.deque(maxlen=2)).append(float(out.detach().sum()))

    def gathered(self, module, out):
        module.__dict__.setdefault("sums", set()).add(float(out.detach().sum()))

    def buffer_in_place(self, module, out):
        if "total" not in module._buffers:
            module.register_buffer("total", torch.zeros(()))
        module.total += out.detach().sum()

    def buffer_anew(self, module, out):
        module._buffers["total"] = module._buffers.get("total", torch.zeros(())) * 0.9 + out.detach().sum()

    def new_name(self, module, out):
        if not module.bad:
            return
        setattr(module, f"call_{len(vars(module))}", 1)


@pytest.mark.parametrize("way", [name for name in vars(Carried) if not name.startswith("__")])
def test_what_a_module_keeps(way, around_replays):
    model = Keeper(getattr(Carried(), way))
    worker = around_replays(lambda: everything(model))
    train(model)
    nothing_moved(worker)


def test_which_weights_are_trained_stays_as_a_forward_has_set_it(around_replays):
    """Layers that are thawed, or frozen, as training goes on."""
    model = Keeper(lambda module, _: module.layer.bias.requires_grad_(not module.layer.bias.requires_grad))
    worker = around_replays(lambda: [one.requires_grad for one in model.parameters()])
    train(model)
    nothing_moved(worker)


# ---------------------------------------------------------------------- tensors wherever they are


class Elsewhere:
    """Tensors outside of modules that a forward writes into, by the way it does so."""

    def __init__(self):
        self.sums = torch.zeros(3, 4)
        self.table = torch.zeros(5, 4)
        self.statistics = torch.zeros(4), torch.ones(4)

    def in_place(self, module, out):
        self.sums.mul_(0.9).add_(out.detach(), alpha=0.1)

    def by_data(self, module, out):
        self.sums.data = 0.9 * self.sums.data + out.detach()

    def rows(self, module, out):
        self.table[1:4] += out.detach()
        self.table.index_add_(0, torch.tensor([0, 0, 4]), out.detach())

    def through_foreach(self, module, out):
        torch._foreach_mul_([self.sums, self.table], 0.5)

    def as_output(self, module, out):
        torch.add(self.sums, out.detach(), out=self.sums)

    def normalised(self, module, out):
        torch.nn.functional.batch_norm(out.detach(), *self.statistics, training=True)


@pytest.mark.parametrize("way", [name for name in vars(Elsewhere) if not name.startswith("__")])
def test_tensors_that_the_modules_do_not_hold(way, around_replays):
    """In nothing that can be followed: the very memory is put back."""
    held = Elsewhere()
    hidden = weakref.WeakValueDictionary({"held": held})

    def keep(module, out):
        getattr(hidden["held"], way)(module, out)

    model = Keeper(keep)
    tensors = [held.sums, held.table, *held.statistics]
    worker = around_replays(lambda: [(id(one), one._version, bits(one)) for one in tensors])
    train(model)
    nothing_moved(worker)


@pytest.mark.parametrize("policy", ["auto", "continue"])
def test_more_than_can_be_put_back_is_written_over_only_where_the_run_ends(policy, around_replays, monkeypatch):
    monkeypatch.setattr(overwritten, "_MOST_BYTES", 100)
    sums = torch.zeros(3, 40)
    model = Keeper(lambda module, out: sums.add_(1))
    worker = around_replays(lambda: bits(sums), on_anomaly=policy)
    with pytest.raises(AnomalyStop) if policy == "auto" else contextlib.nullcontext():
        train(model)
    before, after, looked = worker.pairs[0]
    if policy == "auto":
        assert looked.outcome == "found"
    else:
        assert (looked.outcome, before == after) == ("refused", True)
        assert "more than could be put back" in looked.reason
