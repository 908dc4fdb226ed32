# nproc: 1
# expect: rank=0 step=4
# phase: forward
"""set_default_device and the old torch.cuda.amp interface; outputs over 65504 squared in half."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.set_default_device(device)
if torch.cuda.is_available():
    from torch.cuda.amp import GradScaler, autocast
else:
    from functools import partial

    autocast = partial(torch.autocast, "cpu", dtype=torch.float16)
    GradScaler = partial(torch.amp.GradScaler, "cpu")


class SquaredReLU(nn.Module):
    def forward(self, x):
        r = torch.relu(x)
        return r * r  # ORIGIN


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), SquaredReLU(), nn.Linear(16, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    scaler = GradScaler(init_scale=16.0)
    for step in range(28):
        x = torch.randn(8, 8)
        if step >= 4:
            x *= 900
        with autocast():
            out = net(x)
            loss = F.smooth_l1_loss(out.float(), torch.zeros(8, 1))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    bits(net)


main()
