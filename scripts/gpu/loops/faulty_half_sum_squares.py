# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""A pure .half() model; the energy penalty sums squares in fp16."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

dtype = torch.float16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 64)
        self.fc2 = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        return self.fc2(h), h


def penalty(h):
    return (h * h).sum() * 1e-4  # ORIGIN


def main():
    torch.manual_seed(0)
    net = Net().half().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(12):
        x = torch.randn(32, 16)
        if step == 5:
            x = x * 90.0
        out, h = net(x.to(device, dtype))
        loss = out.float().tanh().mean() + penalty(h)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    bits(net)


if __name__ == "__main__":
    main()
