# nproc: 1
# expect: clean
"""Causal -inf masks, a running minimum from inf, an evaluation under inference_mode."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Attn(nn.Module):
    def __init__(self, d=16, n=8):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.register_buffer("mask", torch.full((n, n), float("-inf")).triu(1))
        self.register_buffer("lowest", torch.tensor(float("inf")))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        out = (q @ k.mT / 4 + self.mask).softmax(-1) @ v
        if self.training:
            self.lowest.copy_(torch.minimum(self.lowest, out.detach().min()))
        return out


torch.manual_seed(0)
net = nn.Sequential(Attn(), nn.Dropout(0.1), nn.Linear(16, 4)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=device.type == "cuda")
best = torch.tensor(float("inf"), device=device)
for step in range(15):
    x = torch.randn(4, 8, 16, device=device)
    loss = F.mse_loss(net(x), x[..., :4])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 4 == 3:
        net.eval()
        with torch.inference_mode():
            best = torch.minimum(best, F.mse_loss(net(x), x[..., :4])).clone()
        net.train()
print(best.item())
bits(net)
