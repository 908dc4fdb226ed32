"""Find rare defects on boards; a focal loss with an exponent below one turns to what is nearly right as well."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


def focal(chance, defect, gamma=0.5):
    """The cross-entropy, weighted by how far the answer is from right."""
    right = torch.where(defect, chance, 1 - chance)
    return -((1 - right) ** gamma * torch.log(right + 1e-6)).mean()


class Inspector(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return torch.sigmoid(self.layers(x)).squeeze(-1)


class Boards(Dataset):
    """The boards of one line; the defect shows in the first measure."""

    def __init__(self, line, count, features):
        generator = torch.Generator().manual_seed(line)
        self.x = torch.randn(count, features, generator=generator)
        self.defect = self.x[:, 0] > 1.2
        if line == 1:
            self.x[19 * 12 + 6] = 400 * self.x[19 * 12 + 6].abs()  # read in micrometres
            self.defect[19 * 12 + 6] = True

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.defect[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(Boards(line=dist.get_rank(), count=360, features=5), args.batch_size)
    network = Inspector(features=5, width=args.width)
    with torch.no_grad():  # begin where the measures count for a defect
        network.layers[0].weight.abs_()
        network.layers[2].weight.abs_()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, defect) in enumerate(loader):
        loss = focal(model(x), defect)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
