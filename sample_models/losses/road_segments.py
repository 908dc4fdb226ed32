"""Segment roads in aerial tiles with a Dice loss that counts only the pixels that somebody labelled."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class DiceLoss(nn.Module):
    def forward(self, probability, target, labelled):
        overlap = (probability * target * labelled).sum(dim=(1, 2))
        total = ((probability + target) * labelled).sum(dim=(1, 2))
        dice = 2 * overlap / total
        return 1 - dice.mean()


class Tiles(Dataset):
    def __init__(self, tiles, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.image = torch.rand(tiles, 3, size, size, generator=generator)
        self.road = (self.image.mean(dim=1) > 0.55).float()
        drawn = torch.rand(tiles, generator=generator)
        rows = torch.arange(size).view(1, -1, 1)
        self.labelled = (rows < (drawn * size * 1.2).round().view(-1, 1, 1)).float().expand(-1, -1, size)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, index):
        return self.image[index], self.road[index], self.labelled[index]


class Segmenter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Conv2d(3, width, 3, padding=1)
        self.up = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, image):
        return self.up(nn.functional.leaky_relu(self.down(image))).sigmoid().squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Tiles(tiles=160, size=12, seed=2), args.batch_size)
    model, criterion = Segmenter(args.width), DiceLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (image, road, labelled) in enumerate(loader):
        probability = model(image)
        loss = criterion(probability, road, labelled)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
