"""Every way to train on many ranks: ``ways.py WAY FAULTY_RANK``. What goes bad at step 3 belongs to that rank alone.

Where ranks have data of their own, one row of that rank's batch is all zero, and a row divided by its norm is 0 / 0.
Where ranks share the data and split the model, the exponential of that rank's part leaves float32.
"""

import contextlib
import gc
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as with_grad
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
WIDTH, ROWS, STEPS, BAD = 8, 4, 6, 3


class Unit(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)  # zero rows


class Exponential(nn.Module):
    def forward(self, x):
        return torch.exp(x)  # too large


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    """Blocks on rows of length one."""

    def __init__(self):
        super().__init__()
        self.unit = Unit()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.spare = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.unit(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Split(nn.Module):
    """A layer whose hidden columns are split over ranks."""

    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), Exponential(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


RANK, WORLD, FAULTY = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[2])


def batch(step, row=1, *, own=True):
    """The batch of this rank; at the bad step a row of the faulty rank's is zero."""
    generator = torch.Generator().manual_seed(1000 * step + (RANK if own else 0))
    x = torch.randn(ROWS, WIDTH, generator=generator)
    if step == BAD and (RANK == FAULTY or not own):
        x[row] = 0.0
    return x


def net():
    torch.manual_seed(0)
    return Net()


def loop(model, optimizer=None, after=lambda: None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        after()
        optimizer.step()


# ---------------------------------------------------------------- data parallel


def ddp():
    loop(DistributedDataParallel(net(), find_unused_parameters=True))


def ddp_static():
    model = net()
    model.spare = None
    loop(DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True))


def ddp_hook():
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    loop(model)


def ddp_power():
    model = net()
    model.spare = None
    model = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    loop(model)


def ddp_no_sync():
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                x = batch(step if micro == 1 or step != BAD else step + 50)
                (model(x).square().mean() / 3).backward()
        optimizer.step()


def join():
    model = net()
    model.spare = None
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Join([model]):
        for step in range(STEPS + (RANK == FAULTY) * 2):
            loss = model(batch(step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def zero():
    model = net()
    model.spare = None
    model = DistributedDataParallel(model)
    loop(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


class ShardedAdam:
    """Each rank updates its part of one flat parameter; gradients are reduce-scattered, weights gathered again."""

    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.size = -(-sum(one.numel() for one in self.parameters) // WORLD)
        self.shard = nn.Parameter(self.flat([one.detach() for one in self.parameters]).chunk(WORLD)[RANK].clone())
        self.adam = torch.optim.Adam([self.shard], lr=1e-3)

    def flat(self, tensors):
        whole = torch.zeros(self.size * WORLD)
        torch.cat([one.reshape(-1) for one in tensors], out=whole[: sum(one.numel() for one in tensors)])
        return whole

    def zero_grad(self):
        for one in self.parameters:
            one.grad = None

    def step(self):
        whole = self.flat([torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters])
        self.shard.grad = torch.empty(self.size)
        dist.reduce_scatter_tensor(self.shard.grad, whole)
        self.shard.grad /= WORLD
        self.adam.step()
        dist.all_gather_into_tensor(whole, self.shard.detach())
        with torch.no_grad():
            for one, part in zip(
                self.parameters,
                whole.split(
                    [p.numel() for p in self.parameters] + [whole.numel() - sum(p.numel() for p in self.parameters)]
                ),
                strict=False,
            ):
                one.copy_(part.view_as(one))


def sharded_adam():
    model = net()
    loop(model, ShardedAdam(model))


# ---------------------------------------------------------------- sharded weights


def fsdp1(**more):
    model = net()
    model.spare = None
    more = {"use_orig_params": True, **more}
    blocks = [FullyShardedDataParallel(block, device_id=torch.device("cpu"), **more) for block in model.blocks]
    model.blocks = nn.ModuleList(blocks)
    loop(FullyShardedDataParallel(model, device_id=torch.device("cpu"), **more))


def fsdp1_flat():
    fsdp1(use_orig_params=False, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)


def fsdp1_narrow():
    narrow = MixedPrecision(torch.bfloat16, torch.float32, torch.float32)
    fsdp1(use_orig_params=False, mixed_precision=narrow)


def hsdp1():
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    fsdp1(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def fsdp2(mesh=None, **more):
    model = net()
    model.spare = None
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **more)
    loop(fully_shard(model, mesh=mesh, **more))


def fsdp2_narrow():
    """What each rank puts in fits float16, the sum over ranks does not; no rank is the faulty one."""
    model = net()
    model.spare = None
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    model.set_gradient_divide_factor(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for step in range(STEPS):
        loss = 50_000 * model(batch(step, own=False) if step != BAD else torch.ones(ROWS, WIDTH)).mean()
        optimizer.zero_grad()
        (loss if step == BAD else loss / 100).backward()
        optimizer.step()


def fsdp2_keep():
    fsdp2(reshard_after_forward=False)


def fsdp2_half():
    fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def hsdp():
    fsdp2(init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard")))


# ---------------------------------------------------------------- a model split over ranks


def split_net(part, parts):
    """A split model of which the hidden columns of ``part`` alone look at the last channel."""
    torch.manual_seed(0)
    model = Split()
    with torch.no_grad():
        model.up.weight[:, -1] = 0.0
        size = 4 * WIDTH // parts
        model.up.weight[part * size : (part + 1) * size, -1] = 1.0
    return model


def shared(step, *, bad=True):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS * WORLD, WIDTH, generator=generator)
    if step == BAD and bad:
        x[1, -1] = 120.0
    return x


def split_loop(model, data=shared):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = model(data(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def tp():
    mesh = init_device_mesh("cpu", (WORLD,))
    split_loop(parallelize_module(split_net(FAULTY, WORLD), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}))


def fsdp2_clipped():
    """Each rank clips its own shard; the faulty one's holds rows alone that the batch at the bad step does not use."""
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.EmbeddingBag(4 * WORLD, WIDTH), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        rows = torch.arange(4 * WORLD)
        rows = rows[rows // 4 != FAULTY] if step == BAD else rows
        optimizer.zero_grad()
        model(rows[None]).square().mean().backward()
        for part in (one.grad.to_local() for one in model.parameters()):
            part.copy_(part * (part.norm() / part.norm()))  # in its own unit
        optimizer.step()


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.unit, self.norm, self.block = Unit(), nn.LayerNorm(WIDTH), Block()

    def forward(self, x):
        return self.block(self.norm(self.unit(x)))


def sp():
    """Rows are split over the ranks where the network is not: the zero row lies in the faulty rank's part."""
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    model = Sequence()
    plan = {
        "unit": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "block": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True),
        "block.up": ColwiseParallel(),
        "block.down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)

    def data(step):
        x = shared(step, bad=False)
        if step == BAD:
            x[ROWS * FAULTY + 1] = 0.0
        return x

    split_loop(model, data)


def sp_checked():
    """Torch's own NaN check ends all ranks in their backward, for all of them have the bad loss."""
    with torch.autograd.detect_anomaly():
        sp()


def lossp():
    mesh = init_device_mesh("cpu", (WORLD,))
    model = split_net(FAULTY, WORLD)
    model.down = nn.Identity()
    parallelize_module(model, mesh, {"up": ColwiseParallel(use_local_output=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        target = torch.arange(ROWS * WORLD) % (4 * WIDTH)
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(shared(step)), target)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()


def fsdp2_tp():
    """Two dimensions: the data differ along the first, the hidden columns along the second."""
    mesh = init_device_mesh("cpu", (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
    model = split_net(FAULTY % 2, 2)
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    own = RANK // 2

    def data(step):
        generator = torch.Generator().manual_seed(100 * step + own)
        x = torch.randn(ROWS, WIDTH, generator=generator)
        if step == BAD and own == FAULTY // 2:
            x[1, -1] = 120.0
        return x

    split_loop(model, data)


def own_hooks():
    """Gradients are averaged by hooks of the script's, as they come."""
    model = net()
    model.spare = None
    waiting = []

    def send(parameter):
        parameter.grad /= WORLD
        waiting.append(dist.all_reduce(parameter.grad, async_op=True))

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(send)

    def receive():
        while waiting:
            waiting.pop().wait()

    loop(model, after=receive)


# ---------------------------------------------------------------- losses over all ranks


class Gather(torch.autograd.Function):
    """The rows of all ranks; a gradient goes back to the rank of its rows."""

    @staticmethod
    def forward(_, x):
        parts = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(_, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad[ROWS * RANK : ROWS * (RANK + 1)]


def contrast(gathered):
    """Compare each row with those of all ranks, in the loss code of the script."""
    model = net()
    model.spare, model.head = None, nn.Linear(WIDTH, WIDTH)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        own = model(batch(step))
        labels = torch.arange(ROWS) + ROWS * RANK
        loss = nn.functional.cross_entropy(own @ gathered(own).T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def contrast_own():
    contrast(Gather.apply)


def contrast_gather():
    contrast(lambda x: torch.cat(with_grad.all_gather(x)))


def functional_loop():
    """The loop averages what it makes over the ranks, and gradients, by collectives that return what they make."""
    model = net()
    model.spare = None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        output = model(batch(step))
        middle = functional.all_reduce(output.detach(), "sum", dist.group.WORLD) / WORLD
        optimizer.zero_grad()
        (output - middle + 1).square().mean().backward()
        for one in model.parameters():
            one.grad = functional.all_reduce(one.grad, "sum", dist.group.WORLD) / WORLD
        optimizer.step()


def contrast_functional():
    contrast(lambda x: functional.all_gather_tensor_autograd(x.contiguous(), 0, dist.group.WORLD))


# ---------------------------------------------------------------- exchanged activations


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(_, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Experts(nn.Module):
    """One expert a rank; the n-th part of every rank's rows goes to the n-th expert."""

    def __init__(self):
        super().__init__()
        self.inlet, self.outlet = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1)
        torch.manual_seed(RANK)
        self.expert = nn.Sequential(Unit(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        x = AllToAll.apply(self.inlet(x))
        return self.outlet(AllToAll.apply(self.expert(x)))


def experts():
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        x = torch.randn(2 * WORLD, WIDTH, generator=generator)
        if step == BAD and RANK == 0:
            x[2 * FAULTY] = 0.0
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for one in (*model.inlet.parameters(), *model.outlet.parameters()):
            dist.all_reduce(one.grad)
        optimizer.step()


class Context(nn.Module):
    """Attention over a sequence of which each rank holds a part: keys and values are gathered."""

    def __init__(self):
        super().__init__()
        self.unit, self.qkv, self.out = Unit(), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        q, k, v = self.qkv(self.unit(x)).chunk(3, -1)
        k, v = (torch.cat(with_grad.all_gather(one.contiguous())) for one in (k, v))
        return self.out(torch.softmax(q @ k.T, -1) @ v)


def context():
    torch.manual_seed(0)
    loop(DistributedDataParallel(Context()))


def context_plain():
    torch.manual_seed(0)
    model = Context()

    def share():
        for one in model.parameters():
            dist.all_reduce(one.grad)

    loop(model, after=share)


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unit = nn.Linear(WIDTH, WIDTH, bias=False), Unit()

    def forward(self, x):
        return self.layer(self.unit(x) if RANK == FAULTY else x)


class Infinite(nn.Module):
    """The faulty stage sends infinities on, of which the next makes NaN."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = self.layer(x)
        return x + torch.log(x.norm(dim=-1, keepdim=True)) if RANK == FAULTY else x  # zero rows


def pipeline(schedule, kind=Stage):
    torch.manual_seed(0)
    module = kind()
    stage = PipelineStage(module, RANK, WORLD, torch.device("cpu"))
    schedule = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, losses = batch(step, own=False), []
        if RANK == 0:
            schedule.step(x)
        elif RANK == WORLD - 1:
            schedule.step(target=torch.ones(ROWS, WIDTH), losses=losses)
        else:
            schedule.step()
        optimizer.step()


def gpipe():
    pipeline(ScheduleGPipe)


def gpipe_infinite():
    pipeline(ScheduleGPipe, Infinite)


def one_f_one_b():
    pipeline(Schedule1F1B)


def by_hand():
    """A pipeline of the script's own: activations are sent on, their gradients sent back."""
    torch.manual_seed(0)
    module = Stage()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = batch(step, own=False)
        if RANK:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, RANK - 1)
            x.requires_grad_()
        y = module(x)
        if RANK < WORLD - 1:
            dist.send(y.detach(), RANK + 1)
            grad = torch.empty(ROWS, WIDTH)
            dist.recv(grad, RANK + 1)
            y.backward(grad)
        else:
            (y - 1).square().mean().backward()
        if RANK:
            dist.send(x.grad, RANK - 1)
        optimizer.step()


def frozen_by_hand():
    """Stages that train nothing send on what they make, without waiting for anybody; the last one alone trains."""
    torch.manual_seed(0)
    module, x = Stage(), torch.empty(ROWS, WIDTH)
    last = RANK == WORLD - 1
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3) if last else None
    for step in range(STEPS):
        if RANK:
            dist.recv(x, RANK - 1)
        else:
            x = batch(step, own=False)
        if not last:
            with torch.no_grad():
                dist.send(module(x), RANK + 1)
            continue
        optimizer.zero_grad()
        (module(x) - 1).square().mean().backward()
        optimizer.step()


def scattered():
    """The faulty rank makes the rows of all; its own are finite."""
    model = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = torch.empty(ROWS, WIDTH)
        rows = [Unit()(batch(step, own=False)) for _ in range(WORLD)] if RANK == FAULTY else None
        if rows:
            rows[RANK] = torch.ones(ROWS, WIDTH)
        dist.scatter(x, rows, src=FAULTY)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    globals()[sys.argv[1]]()
    dist.destroy_process_group()
    gc.collect()
