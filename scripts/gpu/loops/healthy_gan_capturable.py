# nproc: 1
# expect: clean
"""Healthy GAN, two optimizers, capturable where there is a GPU, gradient penalty by create_graph."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
cuda = device.type == "cuda"
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
og = torch.optim.Adam(G.parameters(), lr=1e-3, capturable=cuda)
od = torch.optim.Adam(D.parameters(), lr=1e-3, capturable=cuda)
for step in range(12):
    for _ in range(2):
        real = torch.randn(16, 2, device=device)
        fake = G(torch.randn(16, 4, device=device)).detach()
        mix = torch.lerp(real, fake, torch.rand(16, 1, device=device)).requires_grad_()
        (g,) = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
        loss = D(fake).mean() - D(real).mean() + 10 * (g.norm(dim=1) - 1).square().mean()
        od.zero_grad()
        loss.backward()
        od.step()
    og.zero_grad()
    (-D(G(torch.randn(16, 4, device=device))).mean()).backward()
    og.step()
bits(G, D)
