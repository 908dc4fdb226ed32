"""Train a classifier whose hidden layer is spread over the ranks (tensor parallel)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.up = nn.Linear(features, width)
        self.down = nn.Linear(width, classes)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(2)
    label = torch.randint(4, (600,), generator=generator)
    x = torch.randn(600, 10, generator=generator) + 2 * torch.eye(4, 10)[label]
    loader = DataLoader(TensorDataset(x, label), args.batch_size)
    model = Classifier(features=10, width=args.width, classes=4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    for step, (points, target) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(points), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
