# nproc: 1
# expect: rank=0 step=5
# phase: forward
# options: --level module
"""nn.MultiheadAttention with weights and an additive mask of -inf that covers a whole row."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 16)
        self.mha = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x, bias):
        h = self.inp(x)
        a, weights = self.mha(h, h, h, attn_mask=bias, need_weights=True)  # ORIGIN
        return self.out((h + a).mean(1)), weights


def main():
    torch.manual_seed(0)
    net = Block().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(9):
        x = torch.randn(4, 7, 6, device=device)
        bias = torch.zeros(7, 7).masked_fill(torch.rand(7, 7).fill_diagonal_(0) > 0.5, float("-inf"))
        if step == 5:
            bias[3] = float("-inf")
        out, _ = net(x, bias.to(device))
        loss = F.cross_entropy(out, torch.randint(0, 2, (4,), device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
