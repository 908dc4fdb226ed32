"""Ways for ranks to wait in vain: ``waits.py WAY [SECONDS]``; SECONDS is the time-out of the process group."""

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

WAY = sys.argv[1]
dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 600))
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Stuck(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(3600 if RANK == 1 and index == 4 else 0)
        return torch.ones(4)


def mean(value):
    total = value.clone()
    dist.all_reduce(total)  # MEAN
    return total / WORLD


def step():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def slow_start():
    time.sleep(9 if RANK == 1 else 0)
    mean(torch.ones(3))
    step()
    dist.destroy_process_group()


def leave_out():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        if RANK != 1 or step != 4:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)  # GRADIENTS
        optimizer.step()
    dist.barrier()  # AFTER


def return_early():
    for step in range(5):
        if RANK == 1 and step == 3:
            return
        mean(torch.ones(3))


def cut():
    for step in range(5):
        if RANK == 1 and step == 3:
            os._exit(0)
        mean(torch.ones(3))


def cut_by_a_thread():
    for step in range(5):
        if RANK == 1 and step == 3:
            threading.Thread(target=os._exit, args=(0,)).start()
            time.sleep(60)
        mean(torch.ones(3))


def loop():
    step()
    mean(torch.ones(3))
    count = 0
    while RANK == 1:
        count += 1  # SPIN
    mean(torch.ones(3))


def in_c():
    step()
    mean(torch.ones(3))
    if RANK == 1:
        sum(range(10**12))  # IN_C
    mean(torch.ones(3))


def lock():
    step()
    mean(torch.ones(3))
    guard = threading.Lock()
    guard.acquire()
    if RANK == 1:
        guard.acquire()  # LOCK
    mean(torch.ones(3))


def loader():
    step()
    for batch in DataLoader(Stuck(), batch_size=2, num_workers=1):  # LOADER
        mean(batch)


def shapes():
    mean(torch.ones(3))
    dist.all_reduce(torch.ones(5 if RANK == 1 else 4))  # SHAPES


def source():
    dist.broadcast(torch.ones(3), src=RANK)  # SOURCE


def no_barrier():
    step()
    mean(torch.ones(3))
    if RANK != 1:
        dist.barrier()  # BARRIER
    time.sleep(3600 if RANK == 1 else 0)  # SLEEP


def no_send():
    mean(torch.ones(3))
    if RANK == 0:
        dist.recv(torch.ones(3), src=1)  # RECV
    mean(torch.ones(3))  # BEYOND


def groups():
    pair = [dist.new_group([0, 1], group_desc="first"), dist.new_group([0, 1], group_desc="second")]
    for group in pair if RANK == 0 else reversed(pair):
        dist.all_reduce(torch.ones(3), group=group)  # GROUPS


def ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        if RANK == 1 and step == 3:
            continue
        loss.backward()  # BACKWARD
        optimizer.step()


def well():
    for _ in range(3):
        mean(torch.ones(3))
        time.sleep(0.1)
    dist.destroy_process_group()


{
    "leave_out": leave_out, "return_early": return_early, "cut": cut, "cut_by_a_thread": cut_by_a_thread, "loop": loop,
    "in_c": in_c, "lock": lock, "loader": loader, "shapes": shapes, "source": source, "no_barrier": no_barrier,
    "no_send": no_send, "groups": groups, "ddp": ddp, "well": well, "slow_start": slow_start,
}[WAY]()  # fmt: skip
sys.stdout.flush()
if WAY == "well":
    os._exit(0)
