# nproc: 1
# expect: rank=0 step=4
# phase: forward
"""Own attention over padded sequences; an empty document masks a whole row."""

import math
import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, keep):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).split(c, -1))
        att = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        att = att.masked_fill(~keep[:, None, None, :], float("-inf"))
        att = att.softmax(-1)  # ORIGIN
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 32, padding_idx=0)
        self.attn = Attention(32, 4)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        h = self.emb(ids)
        h = h + self.attn(h, ids != 0)
        return self.head(h.mean(1))


def main():
    torch.manual_seed(0)
    model = Model().to(device)
    opt = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
    for step in range(10):
        ids = torch.randint(1, 50, (8, 12))
        for row, n in enumerate(torch.randint(3, 13, (8,)).tolist()):
            ids[row, n:] = 0
        if step == 4:
            ids[2] = 0
        label = torch.randint(0, 2, (8,)).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(ids.to(device)), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(False)
    main()
