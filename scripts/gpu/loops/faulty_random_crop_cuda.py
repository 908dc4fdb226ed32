# nproc: 1
# expect: rank=0 step=printed
"""Random crop on the device; a crop may be empty background and is scaled by its own maximum."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def crop(image):
    top, left = torch.randint(0, 12, (2,), device=image.device).tolist()
    piece = image[:, :, top : top + 4, left : left + 4]
    return piece / piece.amax((1, 2, 3), keepdim=True)  # ORIGIN


def main():
    torch.manual_seed(8)
    picture = torch.zeros(2, 1, 16, 16, device=device)
    picture[:, :, 3:, 3:] = torch.rand(2, 1, 13, 13, device=device)
    picture[:, :, 7:, 7:] = 0
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    shown = False
    for step in range(25):
        x = crop(picture)
        noise = torch.randn(2, device=device)
        loss = F.mse_loss(net(x).mean(1), noise)
        if not shown and not torch.isfinite(loss):
            shown = True
            print(f"TRUTH step={step}")
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
