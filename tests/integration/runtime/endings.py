"""Trains a little on CPU and ends in the way its first argument names, on the rank that its second one names."""

# ruff: noqa: PTH118, PTH123, N818 - an ordinary script

import atexit
import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

way, chosen = sys.argv[1], int(sys.argv[2])
rank = int(os.environ.get("RANK", "0"))
told = os.path.join(os.environ["TOLD"], f"{rank}.txt")


def tell(what):
    with open(told, "a", encoding="utf-8") as file:
        file.write(what + "\n")


def hook(kind, error, trace):
    tell(f"excepthook {kind.__name__} {error} last={getattr(sys, 'last_value', None) is error}")
    sys.__excepthook__(kind, error, trace)


class Trouble(Exception):
    pass


def inner(step):
    raise Trouble(f"at step {step}")


def end(step, model):
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "hard":
        os._exit(5)
    if way == "cut" and torch.log(-model(torch.ones(2, 4)).square()).mean().isnan():
        os._exit(6)
    if way == "exit":
        sys.exit(7)
    if way == "words":
        sys.exit("in words")
    if way == "raise":
        try:
            inner(step)
        except Trouble as error:
            raise ValueError("from trouble") from error


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)  # the newest step is noted once in a few milliseconds
        if step == 2 and rank == chosen:
            end(step, model)
    if rank != chosen:
        time.sleep(60)


if __name__ == "__main__":
    sys.excepthook = hook
    atexit.register(tell, "atexit 1")
    atexit.register(tell, "atexit 2")
    try:
        main()
    finally:
        tell("finally")
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
