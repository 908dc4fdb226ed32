# nproc: 1
# expect: rank=0 step=5
# bits: no
# phase: forward
"""Top-2 router; expert balance divides by the mean load, the gates by their own sum in fp16."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MoE(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, d)) for _ in range(n))

    def forward(self, x):
        score = torch.sigmoid(self.gate(x))
        top, index = score.topk(2, -1)
        top = top / top.sum(-1, keepdim=True)  # ORIGIN
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = (index == e).nonzero(as_tuple=True)
            if len(row):
                out = out.index_add(0, row, expert(x[row]) * top[row, slot, None])
        return out


def main():
    torch.manual_seed(0)
    moe, head = MoE().to(device), nn.Linear(16, 2).to(device)
    opt = torch.optim.AdamW([*moe.parameters(), *head.parameters()], lr=1e-3)
    for step in range(9):
        x = torch.randn(12, 16, device=device)
        if step == 5:
            x[7] = (torch.linalg.pinv(moe.gate.weight.detach().cpu()) @ torch.full((4,), -300.0)).to(device)
        loss = F.cross_entropy(head(torch.tanh(moe(x))), torch.randint(0, 2, (12,), device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(moe, head)


main()
