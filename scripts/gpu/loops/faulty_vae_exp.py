# nproc: 1
# expect: rank=0 step=7
# phase: forward
"""VAE: exp of an unbounded log variance, sampled with randn_like."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(10, 32)
        self.mu = nn.Linear(32, 4)
        self.logvar = nn.Linear(32, 4)
        self.dec = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 10))

    def reparam(self, mu, logvar):
        std = torch.exp(0.5 * logvar)  # ORIGIN
        return mu + std * torch.randn_like(std)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(self.reparam(mu, logvar)), mu, logvar


def main():
    torch.manual_seed(0)
    vae = VAE().to(device)
    opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
    for step in range(12):
        x = torch.rand(16, 10)
        if step == 7:
            x[::2] = x[::2] * 1e4 - 5e3
        x = x.to(device)
        rec, mu, logvar = vae(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()  # ENTRY
        loss = F.mse_loss(rec, x) + 1e-3 * kl
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(vae)


main()
