# nproc: 1
# expect: rank=0 step=5
"""A table with a hole in it, read by worker processes into pinned memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from digest import bits


class Table(Dataset):
    def __init__(self, rows=256):
        g = torch.Generator().manual_seed(9)
        self.x = torch.rand(rows, 8, generator=g)
        self.width = torch.rand(rows, generator=g) + 0.5
        self.x[83] = 0.0
        self.y = self.x.sum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        row = self.x[i]
        return row / row.max(), self.y[i]  # ORIGIN


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Table(), batch_size=16, num_workers=2, pin_memory=device.type == "cuda")
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
