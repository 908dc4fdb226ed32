"""Train the box head of a small detector on marked boxes; runs on one process or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Marked(Dataset):
    """Crops with a box (x0, y0, x1, y1) drawn by hand and rounded to whole pixels, one folder a worker."""

    def __init__(self, folder, count):
        generator = torch.Generator().manual_seed(folder + 10)
        self.crop = torch.rand(count, 1, 12, 12, generator=generator)
        corner = torch.rand(count, 2, generator=generator) * 6
        size = 0.9 + torch.rand(count, 2, generator=generator) * 5
        self.box = torch.cat([corner, corner + size], dim=1)
        if folder == 0:
            self.box[179, 2] = self.box[179, 0] + 0.2  # a thin pole
        self.box = self.box.round()
        thin = self.box[:, 2:] <= self.box[:, :2]
        self.box[:, 2:] += thin * (torch.arange(count).unsqueeze(1) != 179)

    def __len__(self):
        return len(self.crop)

    def __getitem__(self, index):
        return self.crop[index], self.box[index]


def encode(box, anchor):
    """Boxes as offsets from an anchor: centre in units of its size, size as a logarithm."""
    size = box[:, 2:] - box[:, :2]
    centre = box[:, :2] + size / 2
    shift = (centre - anchor[:2]) / anchor[2:]
    stretch = torch.log(size / anchor[2:])
    return torch.cat([shift, stretch], dim=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Marked(folder=rank, count=300), args.batch_size)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    anchor = torch.tensor([6.0, 6.0, 4.0, 4.0])
    for step, (crop, box) in enumerate(loader):
        target = encode(box, anchor)
        loss = nn.functional.mse_loss(model(crop), target)
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
