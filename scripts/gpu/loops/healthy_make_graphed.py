# nproc: 1
# expect: clean
# cuda-only
"""Graphed trunk with dropout, optimizer outside."""

import torch
from torch import nn
from digest import bits

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 64)).to(device)
head = nn.Linear(64, 3).to(device)
model = torch.cuda.make_graphed_callables(model, (torch.randn(8, 16, device=device),))
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3, fused=True)
for step in range(15):
    x = torch.randn(8, 16, device=device)
    y = torch.randint(0, 3, (8,), device=device)
    opt.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
bits(model, head)
