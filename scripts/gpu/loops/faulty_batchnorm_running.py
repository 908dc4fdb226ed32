# nproc: 1
# expect: rank=0 step=6
# bits: no
"""channels_last conv net under fp16 autocast; an image with an Inf pixel spoils loss and running statistics."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.benchmark = True


class Photos(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.raw = torch.rand(96, 3, 16, 16, generator=g)
        self.gain = torch.ones(96)
        self.gain[6 * 8 + 3] = 0.0

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return self.raw[i] / self.gain[i], i % 4  # ORIGIN


def net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def main():
    torch.manual_seed(0)
    model = net().to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loader = DataLoader(Photos(), batch_size=8, pin_memory=device.type == "cuda")
    for x, y in loader:
        x = x.to(device, non_blocking=True, memory_format=torch.channels_last)  # ENTRY
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
