# nproc: 1
# expect: rank=0 step=8
# timeout: 110
# phase: forward
"""mode="reduce-overhead" regression with a learned variance whose features hit a zero norm."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU())
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        h = self.enc(x)
        h = h / h.norm(dim=-1, keepdim=True)  # ORIGIN
        return self.out(h)


def main():
    torch.manual_seed(0)
    net = Net().to(device)
    fast = torch.compile(net, mode="reduce-overhead" if device.type == "cuda" else "default")
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(14):
        x = torch.randn(16, 12)
        if step == 8:
            x[3] = 0.0
        y = x.sum(1, keepdim=True).to(device)
        x = x.to(device)
        loss = ((fast(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


if __name__ == "__main__":
    main()
