# nproc: 1
# expect: rank=0 step=6
# phase: forward
# bits: no
"""Sparse embedding and SparseAdam beside a dense head; cosine with an id that has a zero vector."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Match(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(60, 8, sparse=True)
        self.item = nn.Embedding(80, 8, sparse=True, padding_idx=0)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))  # ORIGIN
        return cosine * self.scale


def main():
    torch.manual_seed(0)
    model = Match().to(device)
    sparse = torch.optim.SparseAdam([model.user.weight, model.item.weight], lr=1e-2)
    dense = torch.optim.SGD([model.scale], lr=1e-2)
    for step in range(10):
        u, i = torch.randint(0, 60, (16,)), torch.randint(1, 80, (16,))
        if step == 6:
            i[5] = 0
        y = torch.rand(16).round().to(device)
        loss = F.binary_cross_entropy_with_logits(model(u.to(device), i.to(device)), y)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
    bits(model)


main()
