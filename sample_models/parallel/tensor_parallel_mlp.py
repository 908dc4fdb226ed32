"""Train a feed-forward network whose hidden columns are spread over the ranks (tensor parallel)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Exponential(nn.Module):
    """Gaussian-like units: the exponential of the pre-activation, as in radial basis networks."""

    def forward(self, x):
        return torch.exp(x)


class Network(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.up = nn.Linear(features, width)
        self.activation = Exponential()
        self.down = nn.Linear(width, 1)

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


def make_readings(samples, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(samples, features, generator=generator)
    x[12 * 16 + 5, -1] = 120.0  # the last channel reads kelvin here, not a deviation
    return TensorDataset(x, x[:, :1].sin())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(make_readings(samples=480, features=8, seed=1), args.batch_size)
    model = Network(features=8, width=args.width)
    with torch.no_grad():  # the second half of the units looks at the last channel, as in the model it is taken from
        model.up.weight[:, -1] = 0.0
        model.up.weight[args.width // 2 :, -1] = 1.0
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
