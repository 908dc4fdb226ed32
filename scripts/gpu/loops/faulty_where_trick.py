# nproc: 1
# expect: rank=0 step=9
# phase: backward
"""The where trick: the branch that is not taken has an infinite derivative."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def safe_power(x, exponent=0.5):
    return torch.where(x > 0, x.clamp_min(0).pow(exponent), torch.zeros_like(x))  # ORIGIN


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(3, 3, 1, bias=False)

    def forward(self, x):
        return safe_power(self.mix(x))


def main():
    torch.manual_seed(0)
    model = Gamma().to(device)
    with torch.no_grad():
        model.mix.weight.abs_()
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(13):
        x = torch.rand(4, 3, 20) + 0.1
        if step == 9:
            x[2, :, 5:] = 0
        x = x.to(device)
        loss = F.l1_loss(model(x), x.sqrt())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    bits(model)


main()
