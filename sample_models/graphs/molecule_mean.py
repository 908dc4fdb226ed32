"""Predict a property of molecules with a graph network that averages over neighbours, under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class MeanOfNeighbours(nn.Module):
    def forward(self, x, bonds):
        return bonds @ x / bonds.sum(-1, keepdim=True)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gather = MeanOfNeighbours()
        self.mix = nn.Linear(2 * width, width)

    def forward(self, x, bonds):
        return torch.relu(self.mix(torch.cat([x, self.gather(x, bonds)], dim=-1)))


class Network(nn.Module):
    def __init__(self, elements, width, layers):
        super().__init__()
        self.element = nn.Embedding(elements, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, atoms, bonds):
        x = self.element(atoms)
        for layer in self.layers:
            x = layer(x, bonds)
        return self.head(x.mean(1)).squeeze(-1)


class Molecules(Dataset):
    """One file of molecules: ring and chain bonds, and now and then a counter-ion beside them."""

    def __init__(self, file, count, atoms=9):
        generator = torch.Generator().manual_seed(file)
        self.atoms = torch.randint(6, (count, atoms), generator=generator)
        ring = torch.eye(atoms).roll(1, 0)
        self.bonds = (ring + ring.T).repeat(count, 1, 1)
        salts = range(150, count, 60) if file == 1 else range(300, count, 60)
        for index in salts:
            self.bonds[index, 4] = self.bonds[index, :, 4] = 0

    def __len__(self):
        return len(self.atoms)

    def __getitem__(self, index):
        return self.atoms[index], self.bonds[index], self.atoms[index].float().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Molecules(file=rank, count=400), args.batch_size)
    model = Network(elements=6, width=args.width, layers=3)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (atoms, bonds, value) in enumerate(loader):
        loss = nn.functional.mse_loss(model(atoms, bonds), value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
