# nproc: 1
# expect: clean
"""Both kinds of activation checkpointing with dropout in bf16 autocast."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
blocks = nn.Sequential(*[nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.3)) for _ in range(4)]).to(device)
inp, out = nn.Linear(8, 24).to(device), nn.Linear(24, 2).to(device)
opt = torch.optim.AdamW([*blocks.parameters(), *inp.parameters(), *out.parameters()], lr=1e-3)
for step in range(14):
    x = torch.randn(8, 8, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        h = inp(x)
        h = checkpoint_sequential(blocks, 2, h, use_reentrant=True)
        h = checkpoint(blocks[0], h, use_reentrant=False)
        loss = F.cross_entropy(out(h).float(), torch.randint(0, 2, (8,), device=device))
    opt.zero_grad()
    loss.backward()
    opt.step()
bits(blocks, inp, out)
