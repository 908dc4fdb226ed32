# nproc: 1
# expect: clean
"""Deterministic mode, embeddings, index_add; empty memory is filled with NaN by torch."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
emb = nn.Embedding(50, 16).to(device)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)).to(device)
opt = torch.optim.SGD([*emb.parameters(), *net.parameters()], lr=0.1, momentum=0.9)
for step in range(15):
    ids = torch.randint(0, 50, (24,), device=device)
    group = torch.arange(24, device=device) % 6
    buffer = torch.empty(6, 16, device=device)
    buffer.zero_()
    pooled = buffer.index_add(0, group, emb(ids)) / 4
    loss = F.cross_entropy(net(pooled), torch.randint(0, 3, (6,), device=device))
    opt.zero_grad()
    loss.backward()
    opt.step()
bits(emb, net)
