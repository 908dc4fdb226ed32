# nproc: 1
# expect: clean
# cuda-only
"""The whole training step in one CUDA graph, the way the docs do it."""

import torch
from torch import nn
from digest import bits


def main():
    torch.manual_seed(3)
    device = "cuda"
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)).to(device)
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 20, device=device)
    y = torch.randint(0, 4, (32,), device=device)
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            opt.zero_grad(set_to_none=True)
            loss_fn(model(x), y).backward()
            opt.step()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(g):
        static_loss = loss_fn(model(x), y)
        static_loss.backward()
        opt.step()
    for step in range(20):
        x.copy_(torch.randn(32, 20))
        y.copy_(torch.randint(0, 4, (32,)))
        g.replay()
    print(static_loss.item())
    bits(model)


if __name__ == "__main__":
    main()
