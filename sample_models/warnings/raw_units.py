"""Grade steel from its composition and furnace readings, as they come from the plant: one column is in pascal."""

import torch
from torch import nn


def make_heats(count):
    columns = torch.tensor([0.4, 1.2, 0.3, 101_325.0, 16.0, 2.0])
    readings = columns * (1 + 0.1 * torch.randn(count, 6))
    grade = (readings[:, 0] > 0.4).long() + (readings[:, 1] > 1.2).long()
    return readings, grade


def main():
    torch.manual_seed(0)
    readings, grade = make_heats(2048)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(300):
        batch = torch.randint(0, len(readings), (64,))
        loss = nn.functional.cross_entropy(model(readings[batch]), grade[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
