# nproc: 1
# expect: rank=0 step=70
"""The device lags behind the host, and the update is fused: the host goes on before it knows that a loss is NaN."""

import torch
from digest import bits
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Deep(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(depth)))

    def forward(self, x):
        return self.body(x)


def penalty(rates):
    return torch.log(rates).sum()  # ORIGIN


def main():
    torch.manual_seed(0)
    width = 4096 if device.type == "cuda" else 16
    model = Deep(width, 6).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(80):
        x = torch.randn(width, width, device=device)
        rates = torch.ones(4, device=device)
        if step in (70, 75):
            rates = rates - 2
        loss = model(x).square().mean()
        told = penalty(rates) * 1e-3
        # The gradient of the one is finite, that of the other is not.
        loss = loss + told if step == 70 else loss * (1 + told)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


main()
