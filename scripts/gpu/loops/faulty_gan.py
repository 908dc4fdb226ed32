# nproc: 1
# expect: rank=0 step=6
# phase: loss
"""GAN with the original log loss on probabilities of a saturated discriminator."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())


def d_loss(real, fake):
    return -(torch.log(real) + torch.log(1 - fake)).mean()  # ORIGIN


def main():
    torch.manual_seed(0)
    G.to(device)
    D.to(device)
    og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
    od = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for step in range(11):
        real = torch.randn(16, 2, device=device)
        z = torch.randn(16, 8, device=device)
        fake = G(z).detach()
        if step == 6:
            with torch.no_grad():
                D[2].bias.add_(60.0)  # ENTRY: someone warms the discriminator up
        od.zero_grad()
        d_loss(D(real), D(fake)).backward()
        od.step()
        og.zero_grad()
        F.binary_cross_entropy(D(G(z)).nan_to_num(0.5), torch.ones(16, 1, device=device)).backward()
        og.step()
    bits(G, D)


main()
