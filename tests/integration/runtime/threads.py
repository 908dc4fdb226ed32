"""Two ranks under DDP with every thread that a script may have; rank 1 takes the logarithm of 0 at step 40 of 60.

Beside the training: the workers of a loader, a thread that prefetches its batches, torch's own asynchronous
checkpoints, a thread that trains a small model of its own, and one that evaluates. The first argument is the folder
of the checkpoints.
"""

import queue
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BAD, SAVED = 60, 40, 20


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return (STEPS - 1) * 4

    def __getitem__(self, index):
        return torch.full((8,), 0.5 + index % 7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, scale):
        return (self.layer(x).square() * scale).add(scale).log()


def prefetch(loader, ahead):
    for batch in loader:
        ahead.put(batch * 1.0)


def train_beside(over, told):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    while not over.is_set():
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
        told.append(1)


@torch.no_grad()
def evaluate(over, model):
    while not over.is_set():
        model(torch.ones(2, 8), 1.0)


def threads(over, told, ahead):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1)
    return [
        threading.Thread(target=prefetch, args=(loader, ahead)),
        threading.Thread(target=train_beside, args=(over, told)),
        threading.Thread(target=evaluate, args=(over, Net())),
    ]


def train(folder, rank, ahead, starter):
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Not before: torch imports numpy's generators for the first optimizer, and a loader's process that is forked
    # meanwhile would wait for that import for ever.
    starter.start()
    apart, saving = dist.new_group(backend="gloo"), []
    for step in range(STEPS):
        optimizer.zero_grad()
        scale = 0.0 if step == BAD and rank == 1 else 1.0
        model(ahead.get(), scale).mean().backward()
        optimizer.step()
        if step % SAVED == 5:
            if saving:
                # Two under way share a group: their threads may call it in one order here, in another on the other
                # rank, and then both ranks wait for ever, watched or not.
                saving[-1].result()
            state = {"model": net.state_dict()}
            saving.append(dcp.async_save(state, checkpoint_id=folder / str(step), process_group=apart))
    for one in saving:
        one.result()


def main(folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ahead, over, told = queue.Queue(maxsize=4), threading.Event(), []
    # The first to train is the one that is taped.
    ahead.put(torch.ones(4, 8))
    beside = threads(over, told, ahead)
    starter = threading.Timer(0.2, lambda: [one.start() for one in beside])
    train(folder, dist.get_rank(), ahead, starter)
    over.set()
    starter.join()
    for one in beside:
        one.join(20)
    print(f"beside: {len(told) > 10}, alive: {sum(one.is_alive() for one in beside)}")  # noqa: T201
    dist.destroy_process_group()


main(Path(sys.argv[1]))
