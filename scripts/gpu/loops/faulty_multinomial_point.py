# nproc: 1
# expect: rank=0 step=printed
# phase: forward
"""Hard negative sampled by torch.multinomial on the device; sometimes it is the anchor itself."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(21)
    bank = torch.rand(12, 6, device=device) + 0.5
    net = nn.Linear(6, 6).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    known = False
    for step in range(25):
        anchor = torch.randint(0, 12, (1,), device=device)
        pick = torch.multinomial(torch.ones(12, device=device), 1)
        gap = (bank[anchor] - bank[pick]).abs().sum(1)
        jitter = torch.rand(1, device=device)
        loss = (net(bank[anchor]).pow(2).mean() * (1 + jitter) / gap).sum()  # ORIGIN
        if not known and not bool(torch.isfinite(loss)):
            known = True
            print("TRUTH step=%d" % step)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
