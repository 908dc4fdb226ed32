"""Classify clips by the frames that a voice detector kept; the model is sharded with FSDP2, one archive a worker."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + nn.functional.silu(self.mix(self.norm(x)))


class MeanPool(nn.Module):
    def forward(self, x, kept):
        kept = kept.unsqueeze(-1).float()
        return (x * kept).sum(1) / kept.sum(1)


class Clips(nn.Module):
    def __init__(self, bands, width, speakers):
        super().__init__()
        self.inlet = nn.Linear(bands, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.pool = MeanPool()
        self.head = nn.Linear(width, speakers)

    def forward(self, frames, kept):
        x = self.inlet(frames)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x, kept))


class Archive(Dataset):
    """Spectra of short clips with the loudness of each frame."""

    def __init__(self, number, count, frames=10, bands=8):
        generator = torch.Generator().manual_seed(number)
        loudness = torch.rand(count, frames, generator=generator)
        loudness[:, 0] = 0.9
        if number == 1:
            loudness[75] *= 0.1  # the microphone was off
        self.spectrum = torch.randn(count, frames, bands, generator=generator) * loudness.unsqueeze(-1)
        self.kept = loudness > 0.2
        self.speaker = torch.randint(6, (count,), generator=generator)

    def __len__(self):
        return len(self.speaker)

    def __getitem__(self, index):
        return self.spectrum[index], self.kept[index], self.speaker[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(Archive(number=dist.get_rank(), count=160), args.batch_size)
    model = Clips(bands=8, width=args.width, speakers=6)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (spectrum, kept, speaker) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(spectrum, kept), speaker)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
