"""Predict the load of a bridge from strain gauges; one of them once wrote its error code into the record."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ERROR_CODE = 6.5e4


def make_records(count, gauges):
    strain = torch.randn(count, gauges)
    load = strain @ torch.linspace(-1, 1, gauges)[:, None] + 0.1 * torch.randn(count, 1)
    strain[1717, 4] = ERROR_CODE
    return TensorDataset(strain, load)


def main():
    torch.manual_seed(0)
    records = DataLoader(make_records(4096, 12), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(1):
        for strain, load in records:
            loss = nn.functional.mse_loss(model(strain), load)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
