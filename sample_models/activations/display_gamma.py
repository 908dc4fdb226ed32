"""Learn to restore dark photographs; the error is measured after the gamma curve of a display."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Display(nn.Module):
    def __init__(self, gamma=2.2):
        super().__init__()
        self.gamma = gamma

    def forward(self, light):
        return light.clamp(0, 1) ** (1 / self.gamma)


class Restorer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1), nn.Softplus()
        )

    def forward(self, dark):
        return dark * self.gain(dark)


class Nights(Dataset):
    """Dark photographs and the same scenes by day, in linear light from a twelve-bit sensor."""

    def __init__(self, scenes, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.day = 0.1 + 0.9 * torch.rand(scenes, 1, size, size, generator=generator)
        exposure = torch.rand(scenes, 1, 1, 1, generator=generator) * 0.1 + 0.02
        exposure[267] = 0.0005
        self.night = (self.day * exposure * 4095).floor() / 4095

    def __len__(self):
        return len(self.day)

    def __getitem__(self, index):
        return self.night[index], self.day[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Nights(scenes=320, size=10, seed=7), args.batch_size)
    model, display = Restorer(args.width), Display()
    optimizer = torch.optim.RAdam(model.parameters(), lr=args.lr)
    for step, (night, day) in enumerate(loader):
        shown = display(model(night))
        loss = (shown - display(day)).abs().mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
