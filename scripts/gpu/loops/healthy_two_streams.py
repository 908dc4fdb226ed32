# nproc: 1
# expect: clean
"""Two models trained on two streams."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import contextlib

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)).to(device) for _ in range(2)]
opts = [torch.optim.Adam(m.parameters(), lr=1e-3, foreach=True) for m in models]
streams = [torch.cuda.Stream() if device.type == "cuda" else None for _ in range(2)]
if device.type == "cuda":
    torch.cuda.synchronize()
for step in range(15):
    for model, opt, stream in zip(models, opts, streams):
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            x = torch.randn(32, 10, device=device)
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
if device.type == "cuda":
    torch.cuda.synchronize()
bits(*models)
