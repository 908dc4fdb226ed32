# nproc: 1
# expect: rank=0 step=printed
# phase: forward
"""Diffusion with integer times drawn on the device; the SNR weight of time 0 is infinite."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Parameter(torch.randn(40, 16) * 0.1)
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Dropout2d(0.1), nn.Conv2d(16, 1, 3, padding=1)
        )

    def forward(self, x, t):
        scale = (F.one_hot(t, 40).to(x.dtype) @ self.time).mean(1)
        return self.net(x) * (1 + scale[:, None, None, None])


def weights(t, abar):
    return abar[t] / (1 - abar[t])  # ORIGIN


def main():
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(5)
    abar = torch.cos(torch.arange(40, device=device) / 40 * 1.5) ** 2
    model = Denoiser().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    first = None
    for step in range(25):
        x = torch.randn(4, 1, 8, 8, device=device)
        t = torch.randint(0, 40, (4,), device=device)
        noise = torch.randn_like(x)
        a = abar[t][:, None, None, None]
        out = model(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        loss = (weights(t, abar) * F.mse_loss(out, noise, reduction="none").mean((1, 2, 3))).mean()
        if first is None and not loss.isfinite().item():
            first = step
            print(f"TRUTH step={step}")
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
