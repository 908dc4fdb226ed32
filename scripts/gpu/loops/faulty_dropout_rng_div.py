# nproc: 1
# expect: rank=0 step=printed
# phase: forward
"""Word dropout: the mean over words that were kept; now and then none is."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bag(nn.Module):
    def __init__(self, words=100, dim=24):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, dim) * 0.1)
        self.fc = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 4)
        self.drop = nn.Dropout(0.3)

    def forward(self, onehot):
        kept = onehot * (torch.rand_like(onehot) > 0.6)
        mean = (kept @ self.table) / kept.sum(1, keepdim=True)  # ORIGIN
        return self.out(self.drop(torch.relu(self.fc(mean))))


def main():
    torch.manual_seed(11)
    model = Bag().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    told = False
    for step in range(25):
        onehot = torch.zeros(4, 100)
        for row in range(4):
            onehot[row, torch.randperm(100)[:4]] = 1
        y = torch.randint(0, 4, (4,))
        loss = nn.functional.cross_entropy(model(onehot.to(device)), y.to(device))
        if not told and not loss.isfinite():
            print(f"TRUTH step={step}")
            told = True
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
