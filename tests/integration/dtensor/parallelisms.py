"""Every way to split a model, one clean and one faulty step each, under `detect_anomaly`; one JSON line a step.

Started on 2 ranks, or on 4 for the combinations. Uses torch alone. The fault lies in the same place on every rank, so
that no rank waits for another that has raised.
"""

import json
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
WIDTH = 8


class Block(nn.Module):
    """One MLP block; `faulty` makes its backward NaN, its forward stays finite."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.faulty = False
        self.how = None

    def forward(self, hidden):
        if self.how is not None:
            return checkpoint(self.inner, hidden, use_reentrant=self.how)
        return self.inner(hidden)

    def inner(self, hidden):
        hidden = self.up(self.norm(hidden)).relu()
        if self.faulty:
            hidden = hidden + (hidden * 0).sqrt() * 0  # the planted line
        return self.down(hidden)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, batch):
        return self.second(self.first(batch))


def net():
    torch.manual_seed(0)
    return Net()


def line():
    return init_device_mesh("cpu", (WORLD,))


def split(model, mesh, **more):
    for block in (model.first, model.second):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(), **more})
    return model


def sequence(model, mesh):
    for block in (model.first, model.second):
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(block, mesh, plan)
    return parallelize_module(
        model, mesh, PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0))
    )


def sharded(model, mesh, **more):
    for block in (model.first, model.second):
        fully_shard(block, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def checkpointed(model, *, reentrant):
    model.first.how = model.second.how = reentrant
    return model


def plain_step(model, called=None):
    def step():
        batch = torch.ones(4 * WORLD, WIDTH, requires_grad=True)
        out = (model if called is None else called)(batch)  # the call
        out = out.to_local() if isinstance(out, DTensor) else out
        out.square().mean().backward()

    return model, step


def with_loss_parallel():
    model = split(net(), line())
    head = parallelize_module(nn.Linear(WIDTH, WIDTH), line(), ColwiseParallel(use_local_output=False))

    def step():
        target = torch.arange(4) % WIDTH
        with loss_parallel():
            nn.functional.cross_entropy(head(model(torch.ones(4, WIDTH))), target).backward()

    return model, step


def pipelined():
    model = net()
    part = (model.first, model.second)[RANK]
    stage = PipelineStage(part, RANK, WORLD, torch.device("cpu"))

    def loss(out, target):
        return (out - target).square().mean()

    schedule = ScheduleGPipe(stage, n_microbatches=1, loss_fn=loss)

    def step():
        # Memory that nobody has written is NaN from here on, every time.
        torch.use_deterministic_algorithms(mode=True)
        try:
            if RANK == 0:
                schedule.step(torch.ones(4, WIDTH, requires_grad=True))
            else:
                schedule.step(target=torch.zeros(4, WIDTH))
        finally:
            torch.use_deterministic_algorithms(mode=False)

    return model, step


def compiled():
    model = split(net(), line())
    return plain_step(model, torch.compile(model, backend="aot_eager"))


def both(mesh):
    return sharded(split(net(), mesh["tensor"]), mesh["data"])


ON_TWO = {
    "tensor": lambda: plain_step(split(net(), line())),
    "sequence": lambda: plain_step(sequence(net(), line())),
    "loss": with_loss_parallel,
    "fully-shard": lambda: plain_step(sharded(net(), line())),
    "checkpoint": lambda: plain_step(checkpointed(split(net(), line()), reentrant=False)),
    "checkpoint-reentrant": lambda: plain_step(checkpointed(split(net(), line()), reentrant=True)),
    "compile": compiled,
    "ddp": lambda: plain_step(net(), None),
    "fsdp1": lambda: plain_step(net(), None),
    "pipeline": pipelined,
}
ON_FOUR = {
    "fully-shard-tensor": lambda: plain_step(both(init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")))),
    "tensor-of-four": lambda: plain_step(split(net(), line())),
}


def wrapped(name):
    """DDP and FSDP1 wrap the model; the fault is set on what they wrap."""
    model = net()
    around = (
        DistributedDataParallel(model)
        if name == "ddp"
        else FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    )
    return plain_step(model, around)


def attempt(step):
    """Run one step under the check; return the error and the forward call that torch says made it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly():
                step()
            raised = ""
        except Exception as error:  # noqa: BLE001 - any error is the answer here
            # A pipeline stage raises its own error from that of the engine.
            whole = "".join(traceback.format_exception(error))
            said = [one for one in whole.splitlines() if "returned nan values" in one]
            raised = said[0] if said else whole
    told = [str(one.message) for one in caught if "Error detected in" in str(one.message)]
    return raised, "\n".join(told)


def say(**words):
    os.write(1, (json.dumps({"rank": RANK, **words}) + "\n").encode())


wanted = sys.argv[1:]
for name, build in (ON_TWO if WORLD == 2 else ON_FOUR).items():
    if wanted and name not in wanted:
        continue
    model, step = wrapped(name) if name in ("ddp", "fsdp1") else build()
    for faulty in (False, True):
        torch.compiler.reset()
        # The last stage of a backward, for no other then waits for it.
        (model.first if name == "pipeline" else model.second).faulty = faulty
        raised, forward = attempt(step)
        say(case=name, faulty=faulty, raised=raised, forward=forward)
        dist.barrier()
dist.barrier()
say(case="end")
# gloo's threads now and then abort in the interpreter's teardown.
os._exit(0)
