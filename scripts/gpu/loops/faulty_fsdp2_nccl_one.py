# nproc: 1
# expect: rank=0 step=4
# phase: forward
"""fully_shard on one rank; the log of an output that is negative for once."""

import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from digest import bits


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.out = nn.Linear(d, 1, bias=False)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        rate = self.out(x) + 20.0
        return torch.log(rate)  # ORIGIN


def main():
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    mesh = init_device_mesh(kind, (1,))
    torch.manual_seed(0)
    net = Net().to(kind)
    for b in net.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(net, mesh=mesh)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(9):
        x = torch.randn(8, 16, device=kind)
        if step == 4:
            x = x * 1e4
        loss = (net(x) - 3).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(net)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
