# nproc: 2
# expect: rank=1 step=7
# phase: forward
"""Two gloo ranks share one GPU; the shard of rank 1 has a document without words."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from digest import bits

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(20, 16, bias=False)

    def forward(self, counts):
        h = self.proj(counts)
        return h / h.norm(dim=1, keepdim=True)  # ORIGIN


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = Encoder()
        self.cls = nn.Linear(16, 3)

    def forward(self, x):
        return self.cls(self.enc(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Model().to(device))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(12):
        x = torch.rand(8, 20, generator=g)
        if rank == 1 and step == 7:
            x[3] = 0
        y = torch.randint(0, 3, (8,), generator=g).to(device)
        loss = nn.functional.cross_entropy(model(x.to(device)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        metric = loss.detach().clone()
        dist.all_reduce(metric)
        if rank == 0:
            print(step, metric.item() / 2)
    bits(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
