# nproc: 1
# expect: rank=0 step=9
# cuda-only
# phase: forward
"""make_graphed_callables for the trunk; the loss outside takes the log of a probability that becomes 0."""

import torch
from torch import nn
from digest import bits


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(32, 5)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def nll(logits, y):
    p = logits.softmax(-1).gather(1, y[:, None])
    return -torch.log(p).mean()  # ORIGIN


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    trunk = Trunk().to(device)
    sample = torch.randn(16, 16, device=device)
    graphed = torch.cuda.make_graphed_callables(trunk, (sample,))
    opt = torch.optim.SGD(trunk.parameters(), lr=0.01)
    for step in range(14):
        x = torch.randn(16, 16, device=device)
        y = torch.randint(0, 5, (16,), device=device)
        if step == 9:
            x = x * 1e5
        opt.zero_grad()
        loss = nll(graphed(x), y)
        loss.backward()
        opt.step()
    bits(trunk)


if __name__ == "__main__":
    main()
