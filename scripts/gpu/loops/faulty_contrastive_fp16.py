# nproc: 1
# expect: rank=0 step=6
# phase: forward
"""CLIP-like loss in half precision; the learned temperature is exponentiated and not capped."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.f(x), dim=-1)


def main():
    torch.manual_seed(0)
    image, text = Tower(12).to(device), Tower(9).to(device)
    logit_scale = nn.Parameter(torch.tensor(2.6, device=device))
    opt = torch.optim.AdamW([*image.parameters(), *text.parameters(), logit_scale], lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    target = torch.arange(10, device=device)
    for step in range(32):
        if step == 6:
            with torch.no_grad():
                logit_scale.fill_(11.5)  # ENTRY
        a, b = torch.randn(10, 12, device=device), torch.randn(10, 9, device=device)
        opt.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            ia, tb = image(a), text(b)
            logits = logit_scale.exp().half() * (ia.half() @ tb.half().t())  # ORIGIN
            loss = F.cross_entropy(logits, target)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(scaler.get_scale())
    bits(image, text)


main()
