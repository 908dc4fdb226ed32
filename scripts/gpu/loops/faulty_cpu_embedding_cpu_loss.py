# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""The table lives on the CPU, the model on the device, and the loss comes back to the CPU."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(40, 12, mode="sum", padding_idx=0)
        self.top = nn.Linear(12, 2).to(device)

    def forward(self, ids):
        e = self.table(ids).to(device)
        e = e * torch.rsqrt(e.square().mean(-1, keepdim=True))  # ORIGIN
        return self.top(e)


def main():
    torch.manual_seed(0)
    net = Split()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(9):
        ids = torch.randint(1, 40, (8, 5))
        if step == 5:
            ids[6] = 0
        logits = net(ids).cpu()
        loss = F.cross_entropy(logits, torch.randint(0, 2, (8,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
