# nproc: 1
# expect: rank=0 step=6
# line: unseen
# phase: forward
# options: --sentinel-lag 1
"""Cox partial likelihood: logsumexp by hand overflows for one patient."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cox(risk, event):
    total = torch.log(torch.exp(risk).sum())  # ORIGIN
    return ((total - risk) * event).mean()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(9, 32), nn.SELU(), nn.Linear(32, 1)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=device.type == "cuda")
for step in range(12):
    x = torch.randn(20, 9, device=device)
    if step == 6:
        x = x * 3e4
    event = (torch.rand(20, 1, device=device) > 0.5).float()
    loss = cox(net(x), event)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
bits(net)
