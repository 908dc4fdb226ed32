# nproc: 1
# expect: rank=0 step=6
"""The classic data prefetcher on a side stream, with an image that has no contrast."""

import contextlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = None
            return
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.x = self.x.to(device, non_blocking=True)
            self.y = self.y.to(device, non_blocking=True)
            flat = self.x.flatten(1)
            low, high = flat.min(1).values, flat.max(1).values
            shape = (-1, 1, 1, 1)
            self.x = (self.x - low.view(shape)) / (high - low).view(shape)  # ORIGIN

    def next(self):
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        if x is not None and self.stream:
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
        self.preload()
        return x, y


def main():
    torch.manual_seed(0)
    images = torch.rand(160, 1, 8, 8)
    images[6 * 16 + 2] = 0.25
    labels = torch.randint(0, 3, (160,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, pin_memory=device.type == "cuda")
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    fetch = Prefetcher(loader)
    x, y = fetch.next()
    while x is not None:
        loss = nn.functional.cross_entropy(model(x), y)  # ENTRY
        opt.zero_grad()
        loss.backward()
        opt.step()
        x, y = fetch.next()  # ENTRY
    bits(model)


if __name__ == "__main__":
    torch.backends.cudnn.deterministic = True
    main()
