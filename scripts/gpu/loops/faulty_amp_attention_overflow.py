# nproc: 1
# expect: rank=0 step=6
# phase: forward
"""Fine-tune a small retriever in fp16; the logits are not scaled and documents get long."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        logits = q @ k.transpose(-2, -1)  # ORIGIN
        return logits.softmax(-1) @ v


class Ranker(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.inp = nn.Linear(16, dim)
        self.attn = SelfAttention(dim)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.inp(x)
        h = h + self.drop(self.attn(h))
        return self.head(torch.tanh(h)).mean(1).squeeze(-1)


def batch(step, generator):
    x = torch.randn(8, 12, 16, generator=generator)
    if step >= 6:
        x = x * 800.0
    return x, torch.rand(8, generator=generator)


def main():
    torch.manual_seed(0)
    model = Ranker().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0)
    g = torch.Generator().manual_seed(1)
    for step in range(30):
        x, y = batch(step, g)
        x, y = x.to(device), y.to(device)
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.float16):
            pred = model(x)
            loss = nn.functional.mse_loss(pred.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    bits(model)


if __name__ == "__main__":
    main()
