"""What a script's own questions about NaN in a DTensor get, and ranks that run different numbers of backwards.

Started on 2 ranks. Uses torch alone; one JSON line a question.
"""

import json
import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
MESH = init_device_mesh("cpu", (WORLD,))
NAN = float("nan")


def say(**words):
    os.write(1, (json.dumps({"rank": RANK, **words}) + "\n").encode())


def part(value, placement):
    return DTensor.from_local(torch.full((2, 2), value), MESH, [placement], run_check=False)


def asked(function):
    """The answer and the collectives it took."""
    with CommDebugMode() as seen:
        try:
            answer = function()
        except Exception as error:  # noqa: BLE001 - any error is the answer here
            answer = type(error).__name__
    return answer, seen.get_total_counts()


class Other(TorchDispatchMode):
    """A mode of somebody else between the engine and DTensor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.deeper(func, args, kwargs or {})

    def deeper(self, func, args, kwargs):
        return func(*args, **kwargs)


class Asks(torch.autograd.Function):
    """Asks its own question in backward."""

    @staticmethod
    def forward(_, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_, gradient):
        inside.append(str(torch.isnan(gradient).placements))
        return gradient


for name, placement in (("replicate", Replicate()), ("shard", Shard(0)), ("partial", Partial("sum"))):
    bad = part(NAN if RANK == 1 or name == "replicate" else 1.0, placement)
    isnan, comparison = (
        asked(lambda one=bad: str(torch.isnan(one).placements)),
        asked(lambda one=bad: str((one.abs() > 0).placements)),
    )
    say(case="isnan", of=name, placements=isnan[0], collectives=isnan[1], like=comparison)
    say(case="isnan-any", of=name, answer=asked(lambda one=bad: bool(torch.isnan(one).any().full_tensor()))[0])
    flags = torch.isnan(bad)
    say(case="any", of=name, answer=asked(lambda one=flags: bool(torch._is_any_true(one)))[0])
    say(case="all", of=name, answer=asked(lambda one=flags: bool(torch._is_all_true(~one)))[0])
    say(case="check", of=name, answer=asked(lambda one=flags: torch._check_tensor_all(~one, lambda: "bad"))[0])

loc, scale = part(0.0, Shard(0)), part(1.0 if RANK == 0 else -1.0, Shard(0))
say(case="distribution", answer=asked(lambda: str(torch.distributions.Normal(loc, scale).batch_shape))[0])
good = asked(lambda: list(torch.distributions.Normal(loc, scale.abs()).batch_shape))[0]
say(case="distribution-good", answer=good)

for check in (False, True):
    inside = []
    leaf = distribute_tensor(torch.ones(4, 4), MESH, [Shard(0)]).requires_grad_()
    seen_by_hook = []
    with torch.autograd.set_detect_anomaly(check):
        middle = Asks.apply(leaf * 1)
        middle.register_hook(lambda gradient, seen=seen_by_hook: seen.append(type(torch.isnan(gradient)).__name__))
        middle.sum().backward()
    say(case="inside", check=check, function=inside, hook=seen_by_hook)

# The backward formula of max asks isnan itself, of a value that is partial.
gradients = []
for check in (False, True):
    leaf = distribute_tensor(torch.arange(16.0).reshape(4, 4), MESH, [Shard(0)]).requires_grad_()
    with torch.autograd.set_detect_anomaly(check):
        answer, count = asked(lambda one=leaf: (one * 2).max().backward())
    gradients.append(leaf.grad.full_tensor() if leaf.grad is not None else torch.zeros(()))
    say(case="formula", check=check, error=answer, collectives=count, total=gradients[-1].sum().item())

with Other(), torch.autograd.detect_anomaly():
    leaf = part(0.0 if RANK == 1 else 1.0, Shard(0)).requires_grad_()
    say(case="mode", answer=asked(lambda: (leaf.sqrt() * 0).to_local().sum().backward())[0])

nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged).requires_grad_()
with torch.autograd.detect_anomaly():
    say(case="nested", answer=asked((nested * 2).values().sum().backward)[0])
    say(case="nested-bad", answer=asked((nested.sqrt() * 0).values().sum().backward)[0])

leaf = distribute_tensor(torch.ones(4, 4), MESH, [Shard(0)]).requires_grad_()
with torch.autograd.detect_anomaly():
    for turn in range(3):
        for _ in range(1 + 2 * RANK):
            (leaf * 2).to_local().sum().backward()
        mine = torch.tensor([float(turn + RANK)])
        dist.all_reduce(mine)
        say(case="backwards", turn=turn, answer=mine.item())
dist.barrier()
say(case="end")
# gloo's threads now and then abort in the interpreter's teardown.
os._exit(0)
