# nproc: 1
# expect: clean
"""Large scratch tensors come and go, empty_cache each few steps, uninitialised scratch is never read."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01, foreach=True)
size = 2**28 if device.type == "cuda" else 2**20
for step in range(12):
    scratch = torch.empty(size, device=device)
    scratch[:1024].fill_(float("nan"))
    x = torch.randn(64, 256, device=device)
    loss = F.mse_loss(net(x), x)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    del scratch
    if step % 4 == 3 and device.type == "cuda":
        torch.cuda.empty_cache()
if device.type == "cuda":
    print("peak", torch.cuda.max_memory_allocated() // 2**20)
bits(net)
