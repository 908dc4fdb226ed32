"""Trains a little on CPU, and writes to a file that it never closes; where its first argument says so it goes bad."""

# ruff: noqa: PTH123, SIM115 - an ordinary script

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

file = open("rows.txt", "w", encoding="utf-8")


class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index + 1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(DataLoader(Rows(), batch_size=2)):
    file.write(f"{step}\n")
    output = model(x) / (0.0 if sys.argv[1] == "stopped" and step == 2 else 1.0)
    optimizer.zero_grad()
    output.backward(torch.ones(2, 4))
    optimizer.step()
