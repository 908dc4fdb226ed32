# nproc: 1
# expect: clean
"""Causal flash attention in bf16 with dropout, RMSNorm, tied scheduler, EMA copy."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class GPT(nn.Module):
    def __init__(self, v=40, d=64, h=4):
        super().__init__()
        self.tok = nn.Linear(v, d, bias=False)
        self.n1, self.n2 = nn.RMSNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.h, self.v = h, v

    def forward(self, ids):
        x = self.tok(F.one_hot(ids, self.v).float())
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        x = x + self.mlp(self.n2(x))
        return x @ self.tok.weight


torch.manual_seed(0)
net = GPT().to(device)
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=device.type == "cuda")
for step in range(14):
    ids = torch.randint(0, 40, (4, 17), device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = net(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
    opt.step()
    ema.update_parameters(net)
bits(net, ema)
