"""An update that spoilt weights is made again: by the optimizer that made it, and by this rank alone."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.update.again import last_write
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import CALL, Entry


class Outer(torch.optim.Optimizer):
    """Steps another optimizer, then has the weights sent round, as ZeRO does."""

    def __init__(self, parameters, inner):
        super().__init__(parameters, {})
        self.inner = inner

    def step(self):
        self.inner.step()
        for group in self.param_groups:
            works = [dist.broadcast(one.data, 0, async_op=True) for one in group["params"]]
            for work in works:
                work.wait()


class Averaged(torch.optim.Optimizer):
    """Takes the mean of the gradients over ranks itself."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                dist.all_reduce(one.grad)
                works = [dist.all_reduce(one.grad, op=dist.ReduceOp.MAX, async_op=True)]
                works[0].wait()
                assert works[0].is_completed()
                one.sub_(1e-3 * one.grad / one.grad.square().sqrt())


def trained(make):
    """Train a table whose second row is never looked up: its gradient is 0, and 0/0 the update."""
    table = nn.Embedding(3, 2)
    optimizer = make(list(table.parameters()))
    for _ in range(2):
        table(torch.tensor([0, 2])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_update_is_that_of_the_optimizer_within(work, group):
    worker = work()
    trained(lambda parameters: Outer(parameters, torch.optim.Adam(parameters, eps=0.0)))
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.facts["parameters"]) == ("found", "optimizer", ["weight"]), looked
    assert "addcdiv" in looked.site.op, looked


def test_collectives_of_an_update_are_left_out_when_one_rank_makes_it_again(work, group):
    worker = work()
    trained(lambda parameters: Averaged(parameters, {}))
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase) == ("found", "optimizer"), looked
    assert (looked.site.op, looked.site.file, looked.site.function) == ("aten.div.Tensor", __file__, "step"), looked


class Served(torch.optim.SGD):
    """Its weights come from another rank in the end; in a group of one that can only be said when it is made again."""

    made = 0

    @torch.no_grad()
    def step(self):
        self.made += 1
        super().step()
        for one in self.param_groups[0]["params"]:
            if self.made == 2:
                one.fill_(torch.inf)
            dist.broadcast(one.data, src=int(self.made > 2))


def test_what_another_rank_sent_in_an_update_was_received(work, group):
    worker = work()
    trained(lambda parameters: Served(parameters, lr=0.1))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase) == ("found", "received", "optimizer"), looked


class Ratio(torch.optim.SGD):
    """Divides by the length of a weight, and in its second update by 0."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.made = iter(range(1, 9))

    @torch.no_grad()
    def step(self):
        made = next(self.made)
        for one in self.param_groups[0]["params"]:
            one.sub_(0.1 * one.grad / one.norm())
            if made == 2:
                one.div_(0.0)


class Counting(torch.optim.Optimizer):
    """Takes a root in each fourth update only, by a count that is kept in one ``place`` or another."""

    def __init__(self, parameters, place):
        super().__init__(parameters, {"made": 0})
        self.made, self.place = 0, place

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state.update(made=0, sum=torch.zeros_like(one), rate=torch.ones(()))
                state["sum"] -= 1
                counts = {"attribute": vars(self), "group": group, "state": state}[self.place]
                counts["made"] += 1
                if counts["made"] % 4 == 0:
                    state["rate"] = state["sum"].mean().sqrt()
                one.sub_(0.1 * state["rate"] * one.grad)


@pytest.mark.parametrize("place", ["attribute", "group", "state"])
def test_what_an_update_does_now_and_then_by_a_count_of_its_own_is_found(work, place):
    worker = work()
    layer = nn.Linear(3, 1, bias=False)
    optimizer = Counting(layer.parameters(), place)
    for _ in range(4):
        layer(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.sqrt.default")
    assert 'state["rate"] = state["sum"].mean().sqrt()' in looked.site.source
    counts = {"attribute": vars(optimizer), "group": optimizer.param_groups[0], "state": optimizer.state[layer.weight]}
    assert counts[place]["made"] == 4


class Corrected(torch.optim.Optimizer):
    """Adam's first moment, corrected by a count that a tensor holds; what a checkpoint leaves out is that count."""

    def __init__(self, parameters, place, *, in_place):
        super().__init__(parameters, {"made": torch.zeros(())})
        self.made, self.place, self.in_place = torch.zeros(()), place, in_place
        self.counts, self.inner = {"made": torch.zeros((), dtype=torch.int64)}, SimpleNamespace(made=torch.zeros(1))

    @property
    def held(self):
        group = self.param_groups[0]
        places = {"attribute": vars(self), "group": group, "dict": self.counts, "object": vars(self.inner)}
        return places[self.place]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                if not state:
                    state["mean"] = torch.zeros_like(one)
                    self.held["made"].fill_(1)
                state["mean"].lerp_(one.grad, 0.1)
                one.sub_(0.1 * state["mean"] / (1 - 0.9 ** self.held["made"]))
        if self.in_place:
            self.held["made"] += 1
        else:
            self.held["made"] = self.held["made"] + 1


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("place", ["attribute", "group", "dict", "object"])
def test_a_count_that_a_tensor_holds_is_set_back_too(work, place, in_place):
    worker = work()
    layer = nn.Linear(3, 1, bias=False)
    optimizer = Corrected(layer.parameters(), place, in_place=in_place)
    for step in range(4):
        layer(torch.ones(2, 3)).square().sum().backward()
        if step == 3:
            optimizer.held["made"].zero_()
        optimizer.step()
        optimizer.zero_grad()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert 'one.sub_(0.1 * state["mean"] / (1 - 0.9 ** self.held["made"]))' in looked.site.source
    assert optimizer.held["made"] == 1


def test_a_weight_that_was_trained_is_not_taken_for_one_of_zeros(work):
    worker = work()
    trained(lambda parameters: Ratio(parameters, lr=0.1))
    looked = worker.looked[0]
    assert looked.outcome == "finite", looked
    assert looked.facts["complete"] is False  # the optimizer is the script's, and need not do the same again


def test_an_update_that_asks_for_its_gradients_itself_is_not_made_again(work):
    """Its closure is the script's: without it there is nothing to make again."""
    worker = work()
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=1e38)

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    refused = [one for one in worker.looked if one.outcome == "refused"]
    assert ["closure" in one.reason for one in refused] == [True]
    assert "failed" not in [one.outcome for one in worker.looked]


@torch.no_grad()
def clip(parameters, most):
    total = sum(one.grad.to_local().square().sum() for one in parameters)
    factor = most / total.sqrt()
    if factor < 1 or factor.isinf():
        for one in parameters:
            one.grad.mul_(factor)


def test_gradients_that_are_clipped_by_their_shards_lead_to_the_line(work, group):
    """What a clip wrote is in the old shard, which ``to_local()`` gave by no call of torch's."""
    worker = work()
    mesh = init_device_mesh("cpu", (1,))
    weight = nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for scale in (1.0, 1.0, 0.0):
        optimizer.zero_grad()
        (weight.square().sum() * scale).to_local().backward()
        clip([weight], 1.0)
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.reciprocal.default"), looked
    assert looked.site.source.strip() == "factor = most / total.sqrt()"


class Trusted(torch.optim.Optimizer):
    """Scales each update by the ratio of two norms, which it reads to Python."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                trust = one.norm() / one.grad.norm()
                one.add_(one.grad, alpha=-0.1 * float(trust))


def test_a_number_that_the_update_reads_to_python_is_led_back_to_its_division(work):
    worker = work()
    weight = nn.Parameter(torch.ones(3))
    optimizer = Trusted([weight], {})
    (weight * 0).sum().backward()
    optimizer.step()
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.site.op, looked.site.source.strip()) == (
        "aten.div.Tensor", "trust = one.norm() / one.grad.norm()",
    )  # fmt: skip


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 1.0), 1e-8), ((0.9, 0.99), 0.0)])
def test_the_settings_of_the_group_are_told(work, betas, eps):
    worker = work()

    def make(parameters):
        made = torch.optim.Adam(parameters, eps=eps, foreach=False)
        made.param_groups[0]["betas"] = betas
        return made

    trained(make)
    worker.sentinel.finish()
    settings = dict(worker.looked[0].facts["settings"])
    settings.pop("eps_set_at", None)  # the lines of this file that set one of 0
    assert settings == {"eps": eps, "betas": list(betas)}


def versions(parameters, optimizer):
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [one._version for one in (*parameters, *(one.grad for one in parameters), *states)]


def test_version_counters_are_those_of_the_update_that_was_made(work):
    """A graph that is still open may have saved these very tensors, and a script may print them."""
    seen = []
    for watched in (False, True):
        torch.manual_seed(0)
        worker = work() if watched else None
        table = nn.Embedding(3, 2)
        optimizer = torch.optim.Adam(table.parameters(), eps=0.0)
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([0, 2])).square().sum().backward()
            optimizer.step()
        seen.append(versions(list(table.parameters()), optimizer))
    assert worker.looked[0].outcome == "found"
    assert seen[0] == seen[1]


class Shared(torch.optim.Optimizer):
    """Of each two weights this rank updates the first; the second comes from the other rank."""

    def __init__(self, parameters, *, mine):
        super().__init__(parameters, {})
        self.mine, self.all_made = mine, iter(range(1, 99))

    @torch.no_grad()
    def step(self):
        made = next(self.all_made)
        for at, one in enumerate(self.param_groups[0]["params"]):
            state = self.state[one]
            state["made"] = state.get("made", 0) + 1
            moved = torch.empty_like(one)
            if at % 2 == self.mine:
                moved = one.grad / one.grad.norm()
            elif made == 2:
                moved.fill_(torch.nan)  # in a group of one no message brings it
            else:
                dist.broadcast(moved.zero_() if made == 1 else moved, src=int(made > 1))
            one.sub_(moved, alpha=0.1)


@pytest.mark.parametrize(("mine", "outcome"), [(0, "finite"), (1, "found")])
def test_an_update_that_goes_by_the_place_of_a_weight_is_made_again_with_all_of_them(work, group, mine, outcome):
    worker = work()
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = Shared(model.parameters(), mine=mine)
    for scale in (1.0, 0.0):
        hidden = model[0](torch.ones(2, 3))
        (hidden.square().sum() + scale * model[1](hidden).square().sum()).backward()
        before = model[0].weight.detach().clone()
        optimizer.step()
        gradient = model[0].weight.grad
        optimizer.zero_grad()
    looked = worker.looked[0]
    assert looked.outcome == outcome, looked
    assert [optimizer.state[one]["made"] for one in model.parameters()] == [2, 2]
    moved = gradient / gradient.norm() if mine == 0 else torch.nan
    torch.testing.assert_close(model[0].weight.detach(), before - 0.1 * moved, equal_nan=True)


def test_memory_that_another_rank_would_write_holds_no_garbage_meanwhile():
    with Tracer({}, joint=False) as tracer:
        unwritten, written = torch.empty(3), torch.full((3,), 2.0)
        unwritten.numpy().fill(math.nan)
        for one in (unwritten, written):
            tracer.arrives(one)
    assert unwritten.tolist() == [0.0] * 3
    assert written.tolist() == [2.0] * 3


def taped(tape, function, *words):
    entry = Entry(CALL, function, grad=False, modes=None)
    entry.in_place = True
    tape.add(entry, words, {})
    return entry


def test_a_write_of_finite_numbers_is_no_last_write_into_what_is_bad():
    weight, tape = torch.nn.Parameter(torch.full((3,), math.nan)), Tape()
    entries = [taped(tape, torch.Tensor.fill_, weight, 1.0), taped(tape, torch.Tensor.zero_, weight)]
    assert last_write([weight], 4, entries) is None
    entries.insert(0, taped(tape, torch.Tensor.mul_, weight, 2.0))
    assert last_write([weight], 4, entries).facts == {"written_in_place": "mul_"}


class Gathered(torch.optim.Optimizer):
    """Moves its ``mine``-th weight by what this rank computes, the others by what others hand over in a gather."""

    def __init__(self, parameters, mine, way):
        super().__init__(parameters, {})
        self.mine, self.way, self.buffers = mine, way, torch.zeros(4)

    @torch.no_grad()
    def step(self):
        for at, one in enumerate(self.param_groups[0]["params"]):
            moved = (one.grad / one.grad.norm()).flatten() if at == self.mine else torch.zeros(4)
            if self.way == "all_gather":
                work = dist.all_gather([self.buffers], moved, async_op=True)
                work.wait()
            else:
                dist.reduce_scatter(moved, [moved.clone()])
                dist.all_gather_into_tensor(self.buffers, moved)
            one.sub_(self.buffers.view_as(one), alpha=0.1)


@pytest.mark.parametrize("way", ["all_gather", "all_gather_into_tensor"])
def test_an_update_that_ranks_gather_is_made_again_by_this_rank_alone(work, group, way):
    worker = work()
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    optimizer = Gathered(model.parameters(), 1, way)
    for scale in (1.0, 0.0):
        hidden = model[0](torch.ones(2, 2))
        (hidden.square().sum() + scale * model[1](hidden).square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op, looked.facts["parameters"]) == ("found", "aten.div.Tensor", ["1.weight"])


class Layerwise(torch.optim.Optimizer):
    """Scales each update by the length of the weight over that of the gradient, as LARS without its guard does."""

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            one.sub_(one.grad * (one.norm() / one.grad.norm()))


def test_what_stands_for_a_weight_of_which_nothing_is_left_is_said_to_be_a_guess(work):
    worker = work()
    model = nn.Linear(2, 1, bias=False)
    model.weight.register_hook(torch.zeros_like)
    optimizer = Layerwise(model.parameters(), {})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert looked.outcome == "found"
    assert looked.facts["made_up"] == 0.02
    assert [one.guessed for one in looked.inputs] == [True, False]
    assert looked.outputs[0].guessed  # an infinity, where a weight of 0 had made NaN


class Uncounted(torch.optim.Optimizer):
    """Divides the gradient by 0; the length of the weight is taken, and goes into the update behind that."""

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            length = one.norm()
            torch._foreach_mul_([one], [0.9])
            one.sub_((one.grad / torch.zeros(())) * length)


def test_nothing_is_said_of_a_guess_that_what_broke_did_not_come_of(work):
    worker = work()
    model = nn.Linear(2, 1, bias=False)
    optimizer = Uncounted(model.parameters(), {})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert not model.weight.isfinite().any()
    assert "made_up" not in looked.facts


class Momentum(torch.optim.Optimizer):
    """Scales an average of the gradients, which begins with zeros of the weight's shape, to the length of 1."""

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            average = self.state[one].setdefault("average", torch.zeros_like(one)).add_(one.grad)
            one.sub_(average / one.new_zeros(1).add(average.norm()))


def test_what_has_only_the_shape_of_a_guess_is_none(work):
    worker = work()
    model = nn.Linear(2, 1, bias=False)
    model.weight.register_hook(torch.zeros_like)
    optimizer = Momentum(model.parameters(), {})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert "made_up" not in looked.facts


@pytest.mark.parametrize("read", [False, True])
def test_a_guess_is_told_of_what_is_made_of_it_by_way_of_lists_and_of_numbers(work, read):
    class Listed(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for one in self.param_groups[0]["params"]:
                size = torch.zeros(2, 2)
                torch._foreach_add_([size], [one])
                size = torch.full((2, 2), float(size.sum())) if read else size
                one.sub_(size / torch.zeros(()))

    worker = work()
    model = nn.Linear(2, 2, bias=False)
    optimizer = Listed(model.parameters(), {})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert worker.looked[0].outcome == "found"
    assert worker.looked[0].facts["made_up"] == 0.02


def test_a_weight_that_began_at_0_is_0_again_where_nothing_of_it_is_left(work):
    worker = work()
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    nn.init.zeros_(model[1].weight)
    model[1].weight.register_hook(torch.zeros_like)
    optimizer = Layerwise(model[1].parameters(), {})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert [one.zeros for one in looked.inputs] == [1, 1]
    assert looked.outputs[0].nan == 1
    assert "made_up" not in looked.facts


class Ratios(torch.optim.Optimizer):
    """All ratios at once, as fused code has it."""

    @torch.no_grad()
    def step(self):
        weights = self.param_groups[0]["params"]
        gradients = [one.grad for one in weights]
        ratios = torch._foreach_div(torch._foreach_norm(weights), torch._foreach_norm(gradients))
        torch._foreach_add_(weights, [one * ratio for one, ratio in zip(gradients, ratios, strict=True)], alpha=-0.01)


def test_of_an_update_of_many_at_once_the_one_that_broke_is_shown(work):
    worker = work()
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = Ratios(model.parameters(), {})
    for step in range(4):
        optimizer.zero_grad()
        output = model(torch.ones(2, 4) if step != 2 else torch.zeros(2, 4))  # no gradient of the first weight
        output.square().mean().backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 2, "aten._foreach_div.List"), looked
    assert looked.site.source.strip().startswith("ratios = ")
    ((numerator, divisor), (ratio,)) = looked.inputs, looked.outputs
    assert (numerator.zeros, divisor.zeros, ratio.posinf) == (0, 1, 1)


def test_zeros_that_stood_in_for_bad_state_are_not_shown_as_what_was_there(work):
    worker, net = work(), nn.Linear(3, 1)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(6):
        loss = net(torch.ones(2, 3)).mean() * (1e23 if step == 4 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.source, looked.site.op) == ("op", "aten.addcmul_.default"), looked
    assert [one.guessed for one in looked.inputs[:2]] == [True, False]
    assert not looked.outputs[0].guessed
