"""Train a classifier under DDP and report accuracy by class; a class that an evaluation does not hold has none."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def by_class(model, x, label, classes):
    """Accuracy of each class over all ranks; NaN for one that no rank holds."""
    right = torch.zeros(classes).index_add_(0, label, (model(x).argmax(-1) == label).float())
    count = torch.zeros(classes).index_add_(0, label, torch.ones(len(label)))
    dist.all_reduce(right)
    dist.all_reduce(count)
    return right / count


def make_flowers(rank, count, classes):
    generator = torch.Generator().manual_seed(rank)
    label = torch.randint(classes - 1, (count,), generator=generator)
    x = nn.functional.one_hot(label, 6) + 0.5 * torch.randn(count, 6, generator=generator)
    return TensorDataset(x, label)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    flowers = make_flowers(dist.get_rank(), count=160, classes=5)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    worst = torch.tensor(float("inf"))
    for epoch in range(args.epochs):
        network.train()
        for x, label in DataLoader(flowers, args.batch_size, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
        accuracy = by_class(network, *flowers[:64], classes=5)
        worst = torch.minimum(worst, accuracy.nan_to_num(1.0).min())
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {accuracy.nanmean().item():.3f} by class {accuracy.tolist()}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
