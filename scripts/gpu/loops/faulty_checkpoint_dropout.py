# nproc: 1
# expect: rank=0 step=printed
# phase: forward
"""Checkpointed blocks (use_reentrant=False) with dropout; a row whose features are all dropped is normalised."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.75)

    def forward(self, x):
        h = self.drop(torch.sigmoid(self.fc(x)))
        return h / h.sum(-1, keepdim=True)  # ORIGIN


class Net(nn.Module):
    def __init__(self, dim=6, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 3)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.out(x)


def main():
    torch.manual_seed(4)
    net = Net().to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    seen = False
    for step in range(20):
        x = torch.randn(1, 6, device=device)
        y = torch.randint(0, 3, (1,), device=device)
        loss = nn.functional.cross_entropy(net(x), y)
        if not seen and not torch.isfinite(loss):
            seen = True
            print(f"TRUTH step={step}")
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)


if __name__ == "__main__":
    main()
