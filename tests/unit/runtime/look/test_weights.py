"""Parameters, optimizer state, frozen parameters and buffers: who turned bad, who always was, and what it is called."""

import gc
import math

import pytest
import torch
from torch import nn

from nandiag.runtime.look import frozen as frozen_room
from nandiag.runtime.look import weights as room
from nandiag.runtime.look.finite import read
from nandiag.runtime.look.frozen import Frozen
from nandiag.runtime.look.weights import Weights, owners_of_state
from nandiag.runtime.names import find_roots


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        self.register_buffer("best", torch.tensor(math.inf))
        self.register_buffer("count", torch.tensor(0))


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def frozen(net):
    known = Frozen()
    known.take_stock([net], {id(one) for one in net.parameters() if one.requires_grad})
    known.changed()
    return known


def finite(tensors):
    return all(math.isfinite(value) for value in read(tensors))


# ---------------------------------------------------------------------- frozen


def test_masks_and_scratch_that_were_never_finite_are_no_harm(net, frozen):
    assert frozen.bad() == []
    net.mask.fill_(math.nan)
    net.best.fill_(math.nan)
    assert frozen.bad() == []


@pytest.mark.parametrize("spoil", ["norm.running_var", "frozen.weight"])
def test_what_turned_bad_is_told_once(spoil, net, frozen):
    tensor = dict([*net.named_buffers(), *net.named_parameters()])[spoil]
    tensor.data.view(-1)[1] = math.inf
    assert [(name, what) for name, what, _ in frozen.bad()] == [(spoil, "frozen" if "weight" in spoil else "buffer")]
    assert frozen.bad() == []


def test_only_what_was_written_to_is_looked_at(net, frozen):
    silent = {id(one) for one in (net.norm.running_mean, net.norm.running_var)}
    assert {id(one) for one in frozen.changed()} == silent
    net.frozen.weight.mul_(2)
    assert {id(one) for one in frozen.changed()} == {id(net.frozen.weight)} | silent
    assert {id(one) for one in frozen.changed()} == silent


def test_running_statistics_are_looked_at_though_their_version_does_not_move(net, frozen):
    before = net.norm.running_var._version
    net.norm(torch.tensor([[math.inf, 1.0], [1.0, 2.0]]))
    assert net.norm.running_var._version == before
    assert not all(one.isfinite().all() for one in frozen.changed())
    assert {name for name, _, _ in frozen.bad()} == {"norm.running_mean", "norm.running_var"}


def test_a_buffer_that_is_replaced_is_looked_at(net, frozen):
    net.norm.running_mean = torch.tensor([1.0, math.nan])
    assert any(one is net.norm.running_mean for one in frozen.changed())
    assert [name for name, _, _ in frozen.bad()] == ["norm.running_mean"]


@pytest.mark.parametrize("spoil", ["mask_of_zeros", "frozen.weight"])
def test_what_is_given_other_memory_is_looked_at_though_neither_it_nor_its_version_is_another(spoil, net):
    """``p.data = value``, as averages of weights are laid into a teacher."""
    net.register_buffer("mask_of_zeros", torch.zeros(2, 2))
    frozen = Frozen()
    frozen.take_stock([net], {id(one) for one in net.parameters() if one.requires_grad})
    frozen.changed()
    tensor = dict([*net.named_buffers(), *net.named_parameters()])[spoil]
    tensor.data = torch.full((2, 2), math.nan)
    assert not finite(frozen.norms())
    frozen.changed()
    assert tensor not in set(frozen.changed())


def test_what_an_optimizer_trains_is_not_frozen(net):
    known = Frozen()
    known.take_stock([net], {id(one) for one in net.parameters()})
    net.frozen.weight.data.fill_(math.nan)
    assert known.bad() == []


def test_a_module_that_is_gone_is_forgotten(net, frozen):
    del net
    assert frozen.bad() == []


def test_integers_are_left_out(net, frozen):
    assert all(one is not net.count for one in frozen.changed())


# ---------------------------------------------------------------------- weights


def stepped(net, optimizer):
    sum(one.square().sum() for one in net.parameters() if one.requires_grad).backward()
    optimizer.step()
    return optimizer


@pytest.fixture
def optimizer(net):
    return stepped(net, torch.optim.Adam([one for one in net.parameters() if one.requires_grad]))


def test_parameters_that_are_bad_when_first_met(net):
    weights = Weights()
    net.layer.weight.data[0, 0] = math.nan
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    (held,) = weights.begin(optimizer)
    assert (held.name, held.what, held.tensor is net.layer.weight) == ("layer.weight", "parameter", True)
    assert weights.begin(optimizer) == []


def test_excused_ones_are_left_out_of_every_look(net, optimizer):
    weights = Weights()
    net.layer.weight.data[0, 0] = -math.inf
    weights.excuse(weights.begin(optimizer))
    assert finite(weights.scalars(optimizer, quick=False))
    assert weights.bad(optimizer) == []
    net.layer.bias.data[0] = math.nan
    assert not finite(weights.scalars(optimizer, quick=False))
    assert [one.name for one in weights.bad(optimizer)] == ["layer.bias"]


@pytest.fixture
def same_place(monkeypatch):
    """What comes and goes has one address, as it may in any process."""

    def of(one):
        return 7 if type(one) in {nn.Module, nn.Parameter} else id(one)

    for module in (room, frozen_room):
        monkeypatch.setattr(module, "id", of, raising=False)


@pytest.mark.usefixtures("same_place")
def test_what_comes_in_the_place_of_an_excused_one_that_is_gone_is_looked_at():
    weights, bad = Weights(), nn.Parameter(torch.ones(2, 2))
    weights.excuse([room.Held("w", "parameter", bad)])
    del bad
    optimizer = torch.optim.SGD([nn.Parameter(torch.full((2, 2), math.inf))], lr=0.1)
    assert not finite(weights.scalars(optimizer, quick=False))
    assert len(weights.bad(optimizer)) == 1


@pytest.mark.usefixtures("same_place")
def test_a_mask_that_is_gone_excuses_no_buffer_in_its_place():
    frozen, gone, new = Frozen(), nn.Module(), nn.Module()
    gone.register_buffer("mask", torch.full((2,), -math.inf))
    frozen.take_stock([gone], set())
    del gone
    new.register_buffer("mask", torch.zeros(2))
    frozen.take_stock([new], set())
    new.mask.fill_(math.nan)
    assert [name for name, _, _ in frozen.bad()] == ["mask"]


def test_state_is_looked_at_and_named_by_its_parameter(net, optimizer):
    weights = Weights()
    weights.begin(optimizer)
    assert finite(weights.scalars(optimizer, quick=False))
    optimizer.state[net.layer.bias]["exp_avg_sq"][1] = math.inf
    assert not finite(weights.scalars(optimizer, quick=False))
    (held,) = weights.bad(optimizer)
    assert (held.name, held.what) == ("exp_avg_sq of layer.bias", "optimizer_state")
    assert [id(one) for one in owners_of_state(optimizer, [held])] == [id(net.layer.bias)]


def test_state_of_a_single_number_is_looked_at_but_not_what_else_is_one(net):
    """A temperature has averages of one number; a count, or a least loss that begins at inf, is no harm."""
    net.scale = nn.Parameter(torch.ones(()))
    optimizer = stepped(net, torch.optim.Adam([net.layer.weight, net.scale]))
    weights = Weights()
    weights.begin(optimizer)
    optimizer.state[net.layer.weight]["least"] = torch.tensor(math.inf)
    optimizer.state[net.scale]["step"] = torch.tensor(math.inf)
    assert finite(weights.scalars(optimizer, quick=False))
    optimizer.state[net.scale]["exp_avg_sq"].fill_(math.inf)
    assert not finite(weights.scalars(optimizer, quick=False))


def test_state_in_turns_meets_each_state(net, optimizer):
    weights = Weights()
    weights.begin(optimizer)
    optimizer.state[net.layer.weight]["exp_avg"][0] = math.nan
    rounds = [finite(weights.scalars(optimizer, quick=True)) for _ in range(8)]
    assert rounds.count(False) == 1


def test_many_states_are_looked_at_in_turns():
    many = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(100))
    optimizer = stepped(many, torch.optim.Adam(many.parameters()))
    weights = Weights()
    weights.begin(optimizer)
    optimizer.state[many[77]]["exp_avg"][0] = math.nan
    rounds = [finite(weights.scalars(optimizer, quick=False)) for _ in range(8)]
    assert rounds.count(False) == 1


def test_a_parameter_that_no_module_holds_is_called_by_its_variable_else_by_its_place():
    loose = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]}, {"params": [loose]}], lr=1)
    weights = Weights()
    loose.data[0] = optimizer.param_groups[0]["params"][0].data[0] = math.nan
    assert [one.name for one in weights.begin(optimizer)] == ["param_groups[0].params[0]", "loose"]


def test_a_parameter_of_a_module_that_grew_since_has_the_name_that_it_has_there(net, optimizer):
    weights = Weights()
    weights.begin(optimizer)
    net.adapter = nn.Linear(2, 2)
    optimizer.add_param_group({"params": list(net.adapter.parameters())})
    with torch.no_grad():
        net.adapter.weight.fill_(math.nan)
    (held,) = weights.bad(optimizer)
    assert (held.name, held.owner.module, held.owner.root_class) == ("adapter.weight", "adapter", type(net).__name__)


def test_modules_are_looked_for_a_few_times_at_most(net, optimizer, monkeypatch):
    weights, looks = Weights(), []
    weights.begin(optimizer)
    monkeypatch.setattr(room, "find_roots", lambda: looks.append(1) or [])
    lone = [nn.Parameter(torch.ones(1)) for _ in range(40)]
    optimizer.add_param_group({"params": lone})
    for _ in range(3):
        assert all(weights.name(one, optimizer) for one in lone)
    assert len(looks) <= 8


def test_plain_parameters_are_not_shards(net, optimizer):
    weights = Weights()
    weights.begin(optimizer)
    assert not weights.sharded(optimizer)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def held(tensor):
    return [room.Held("w", "parameter", tensor)]


def test_memory_that_nobody_wrote_is_known_in_deterministic_mode_alone(deterministic):
    never = torch.nn.Parameter(torch.empty(4))
    written = torch.nn.Parameter(torch.empty(4))
    with torch.no_grad():
        written.fill_(float("nan"))
    partly = torch.nn.Parameter(torch.tensor([1.0, float("nan")]))
    assert room.untouched(held(never)) == ("w",)
    assert room.untouched(held(written)) == room.untouched(held(partly)) == ()
    torch.use_deterministic_algorithms(mode=False)
    assert room.untouched(held(never)) == ()


def test_a_frozen_parameter_that_an_optimizer_was_given_may_be_bad_from_the_start(net):
    net.frozen.weight.data.fill_(math.nan)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    weights = Weights()
    assert weights.begin(optimizer) == []
    assert finite(weights.scalars(optimizer, quick=False))
    net.frozen.bias.data.fill_(math.nan)
    assert not finite(weights.scalars(optimizer, quick=False))
    assert [held.name for held in weights.bad(optimizer)] == ["frozen.bias"]


def test_of_many_optimizers_stock_is_taken_in_a_small_part_of_the_time(work, monkeypatch):
    """A task of meta-learning, or a client, has an optimizer of its own: all live objects are gone through for one."""
    worker = work(on_anomaly="continue")
    taken = []
    monkeypatch.setattr(room, "find_roots", lambda: taken.append(1) or find_roots())
    monkeypatch.setattr(room, "_STOCK_SHARE", 0.0)
    model = nn.Linear(4, 1)
    for step in range(40):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4) * (math.nan if step == 39 else 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # The first eight, the one step at which it is taken in any case, and the first call of a module.
    assert len(taken) <= 8 + 1 + 1
    assert [(one.what, one.tensors[0].name) for one in worker.harms if one.what == "gradient"] == [
        ("gradient", "weight")
    ]


def test_a_buffer_is_watched_where_the_script_has_frozen_its_objects(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(4, 1)
    model.register_buffer("counts", torch.zeros(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.freeze()
    try:
        for step in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                model.counts.div_(model.counts)
    finally:
        gc.unfreeze()
    assert [(one.what, one.tensors[0].name) for one in worker.harms] == [("buffer", "counts")]
