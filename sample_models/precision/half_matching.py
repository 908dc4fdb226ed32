"""Match songs to listeners in float16: the cosine of two vectors, each brought to length one by hand."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tower(nn.Module):
    def __init__(self, things, width):
        super().__init__()
        self.table = nn.EmbeddingBag(things, width, mode="sum")
        self.turn = nn.Linear(width, width, bias=False)

    def forward(self, ids):
        x = self.turn(self.table(ids))
        return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


class Matcher(nn.Module):
    def __init__(self, songs, tags, width):
        super().__init__()
        self.listener = Tower(songs, width)
        self.song = Tower(tags, width)

    def forward(self, heard, tags):
        return self.listener(heard) @ self.song(tags).T


class Plays(Dataset):
    """What a listener heard before, and the tags of the song that came next; 0 stands for nothing."""

    def __init__(self, count, songs, tags):
        generator = torch.Generator().manual_seed(9)
        self.heard = torch.randint(1, songs, (count, 6), generator=generator)
        self.tags = torch.randint(1, tags, (count, 3), generator=generator)
        self.tags[163] = 0  # a song that nobody has tagged

    def __len__(self):
        return len(self.heard)

    def __getitem__(self, index):
        return self.heard[index], self.tags[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Matcher(songs=50, tags=30, width=args.width)
    with torch.no_grad():
        model.song.table.weight[0] = 0.0
    model = model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (heard, tags) in enumerate(DataLoader(Plays(320, songs=50, tags=30), args.batch_size)):
        logits = model(heard, tags).float() / 0.1
        loss = nn.functional.cross_entropy(logits, torch.arange(len(heard)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
