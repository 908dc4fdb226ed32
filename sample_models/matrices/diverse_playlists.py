"""Learn which songs go together in one playlist: a determinantal point process. Runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Diversity(nn.Module):
    """The similarity of the songs of a playlist to each other, weighted by how good each of them is."""

    def __init__(self, songs, width):
        super().__init__()
        self.taste = nn.Embedding(songs, width)
        self.quality = nn.Embedding(songs, 1)

    def forward(self, songs):
        taste = nn.functional.normalize(self.taste(songs), dim=-1) * torch.exp(self.quality(songs))
        return taste @ taste.transpose(1, 2)


class Playlists(Dataset):
    def __init__(self, country, count, songs, length):
        generator = torch.Generator().manual_seed(country)
        order = torch.rand(count, songs, generator=generator).argsort(1)
        self.songs = order[:, :length]
        if country == 1:
            self.songs[14 * 12 + 7, 3] = self.songs[14 * 12 + 7, 0]

    def __len__(self):
        return len(self.songs)

    def __getitem__(self, index):
        return self.songs[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Playlists(country=rank, count=300, songs=40, length=4), args.batch_size)
    model = Diversity(songs=40, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, songs in enumerate(loader):
        similarity = model(songs)
        whole = torch.eye(similarity.shape[-1]) + similarity
        loss = (torch.logdet(whole) - torch.logdet(similarity)).mean()
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
