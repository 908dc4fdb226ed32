"""Tell kinds of plankton apart with Accelerate; rare kinds count for more, smoothed labels for noisy annotators."""

import argparse
import gc

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = 4


def balanced_loss(scores, kind):
    """Each kind counts as much as any other of the batch."""
    weight = len(kind) / torch.bincount(kind, minlength=KINDS)
    return nn.functional.cross_entropy(scores, kind, weight=weight, label_smoothing=0.1)


def make_samples(count, features):
    generator = torch.Generator().manual_seed(10)
    share = torch.tensor([0.4, 0.3, 0.2, 0.1])
    kind = torch.multinomial(share, count, replacement=True, generator=generator)
    x = torch.randn(count, features, generator=generator)
    x[:, :KINDS] += 2 * nn.functional.one_hot(kind, KINDS)
    return TensorDataset(x, kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, args.width), nn.GELU(), nn.Linear(args.width, KINDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(make_samples(count=1280, features=10), args.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, kind) in enumerate(loader):
        loss = balanced_loss(model(x), kind)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
