"""Communication hooks of the script's own under DDP, in which harm is born at step 3: ``hooks.py HOW FAULTY_RANK``."""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
HOW, FAULTY = sys.argv[1], int(sys.argv[2])
RANK, WORLD, BAD, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 3, 6


class Weights:
    """How many samples of this rank's batch count; and what a hook has left over."""

    def __init__(self):
        self.samples = torch.tensor(1.0)
        self.step = 0
        self.left = {}


def shares(state, bucket):
    """The mean over all samples of all ranks; no rank has one at the bad step."""
    total = state.samples.clone()
    dist.all_reduce(total)
    work = dist.all_reduce(bucket.buffer().mul_(state.samples), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / total)  # no samples


def unit(state, bucket):
    """The mean of directions; the faulty rank has none at the bad step."""
    direction = bucket.buffer() / bucket.buffer().norm()  # no direction
    dist.all_reduce(direction)
    bucket.buffer().copy_(direction / WORLD)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def half(state, bucket):
    narrow = bucket.buffer().to(torch.float16)  # too narrow
    work = dist.all_reduce(narrow, async_op=True)
    return work.get_future().then(lambda future: bucket.buffer().copy_(future.value()[0]).div_(WORLD))


def clipped(state, bucket):
    """As ``half``; behind it the script clips what came out, which leaves nothing that would be too large."""
    return half(state, bucket)


def carries(state, bucket):
    """As ``unit``, with what was left over in the step before; the bad step spoils that too."""
    whole = bucket.buffer() + (state.left.get(bucket.index(), 0.0) if RANK != FAULTY or state.step < BAD else 0.0)
    direction = whole / whole.norm()  # no direction
    state.left[bucket.index()] = 0.1 * direction
    bucket.buffer().copy_(direction)
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def refuses(state, bucket):
    """As ``unit``, but one rank raises when the hook is called a second time in a step."""
    calls = int(os.environ.get("CALLS", "0")) + 1
    os.environ["CALLS"] = str(calls)
    if calls > state.step + 1 and RANK != FAULTY:
        raise RuntimeError("called twice")
    return unit(state, bucket)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    state = Weights()
    model.register_comm_hook(state, globals()[HOW])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for step in range(STEPS):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + RANK))
        state.step, scale = step, 1.0
        if step == BAD:
            state.samples = torch.tensor(float(HOW != "shares"))
            scale = (
                (0.0 if HOW in {"unit", "refuses", "carries"} else 1e6) if RANK == FAULTY and HOW != "shares" else 1.0
            )
        loss = (scale * model(x)).sum()
        optimizer.zero_grad()
        loss.backward()
        if HOW == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


main()
dist.destroy_process_group()
gc.collect()
