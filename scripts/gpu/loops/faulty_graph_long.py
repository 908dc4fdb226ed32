# nproc: 1
# expect: rank=0 step=any
# line: unseen
# cuda-only
"""Capture forward, backward and a capturable Adam into one CUDA graph, for two seconds: the report narrows the replay (60 of 100)."""

import time

import torch
from torch import nn
from digest import bits


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, x, y):
        rate = nn.functional.softplus(self.net(x))
        return ((rate - torch.log(y + 1.0)) ** 2).mean()  # ORIGIN


def main():
    torch.manual_seed(3)
    device = torch.device("cuda")
    model = Counts().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    sx = torch.zeros(64, 10, device=device)
    sy = torch.zeros(64, 1, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            model(sx, sy).backward()
            opt.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(sx, sy)
        loss.backward()
        opt.step()
    gen = torch.Generator().manual_seed(5)
    for step in range(100):
        x = torch.randn(64, 10, generator=gen)
        y = torch.poisson(torch.full((64, 1), 3.0), generator=gen)
        if step == 59:
            y[7] = -2.0  # ORIGIN: a broken row of the table
        sx.copy_(x)  # ENTRY
        sy.copy_(y)  # ENTRY
        graph.replay()  # ENTRY
        time.sleep(0.02)
        if step % 5 == 0:
            print("step", step, loss.item())
    bits(model)


if __name__ == "__main__":
    main()
