# nproc: 1
# expect: clean
"""Multi-task regression: missing targets are NaN and masked out before the loss."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 9)
y = x[:, :4].clone()
y[torch.rand(160, 4) < 0.3] = float("nan")
net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 4)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, pin_memory=device.type == "cuda", num_workers=2)
for epoch in range(2):
    for a, b in loader:
        a, b = a.to(device, non_blocking=True), b.to(device, non_blocking=True)
        there = ~b.isnan()
        loss = F.mse_loss(net(a)[there], b[there])
        opt.zero_grad()
        loss.backward()
        opt.step()
bits(net)
