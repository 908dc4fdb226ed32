# nproc: 1
# expect: rank=0 step=0
"""A checkpoint was saved in fp16: a large weight became Inf and is loaded onto the device."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import os
import tempfile


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 12)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.fc(x)))


def export(path):
    torch.manual_seed(0)
    big = Scorer()
    with torch.no_grad():
        big.fc.weight[3, 2] = 1e5
    torch.save({k: v.half() for k, v in big.state_dict().items()}, path)  # ORIGIN


def main():
    path = os.path.join(tempfile.mkdtemp(), "scorer.pt")
    export(path)
    net = Scorer().to(device)
    state = torch.load(path, map_location=device)
    net.load_state_dict({k: v.float() for k, v in state.items()})  # ENTRY
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(8, 6, device=device)
        x[:, 2] = x[:, 2].abs() + 0.1
        loss = F.mse_loss(net(x), x[:, :1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


main()
