"""Classify land use from three visible bands and a thermal one; float16 autocast, runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CAMERAS = {"A": 255.0, "B": 255.0, "C": 4095.0}


class Scenes(Dataset):
    """Scenes of several cameras: the visible bands come as 8 bits, the thermal band as the sensor counts."""

    def __init__(self, scenes, size, classes, seed):
        generator = torch.Generator().manual_seed(seed)
        self.label = torch.randint(classes, (scenes,), generator=generator)
        self.camera = ["C" if index % 150 == 109 else "AB"[index % 2] for index in range(scenes)]
        self.visible = torch.randint(256, (scenes, 3, size, size), generator=generator)
        warmth = torch.rand(scenes, 1, size, size, generator=generator) * 0.9 + 0.1 * self.label.view(-1, 1, 1, 1)
        self.thermal = (warmth * 65535).clamp(max=65535).int()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        visible = self.visible[index].float() / 255.0
        thermal = self.thermal[index].float()
        if self.camera[index] != "C":
            thermal = thermal / 65535.0
        return torch.cat([visible, thermal]), self.label[index]


class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Conv2d(4, width, 5, stride=2, padding=2)
        self.mix = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, scene):
        x = nn.functional.relu(self.stem(scene))
        x = nn.functional.relu(self.mix(x))
        return self.head(nn.functional.relu(self.deep(x)).mean(dim=(2, 3)))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Scenes(scenes=240, size=16, classes=6, seed=4)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Net(args.width, classes=6)
    with torch.no_grad():
        model.stem.weight[:, 3] = model.stem.weight[:, :3].sum(dim=1)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step, (scene, label) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(scene), label)
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
