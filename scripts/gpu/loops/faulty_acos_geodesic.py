# nproc: 1
# expect: rank=0 step=7
# phase: backward
"""Geodesic rotation loss: acos at exactly 1."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.net(x)


def geodesic(cosine):
    return torch.acos(cosine.clamp(-1, 1)).mean()  # ORIGIN


def main():
    torch.manual_seed(0)
    model = Pose().to(device)
    opt = torch.optim.NAdam(model.parameters(), lr=1e-4)
    for it in range(12):
        x = torch.randn(8, 9, device=device)
        out = torch.tanh(model(x)).mean(-1)
        cosine = 0.9 * out
        if it == 7:
            cosine = torch.cat([cosine[1:], 1.0 + 0.0 * out[:1]])
        loss = geodesic(cosine)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    bits(model)


main()
