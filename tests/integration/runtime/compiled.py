"""A function that is compiled calls the model, of which more than one graph is made, and its loss: ``compiled.py BAD``.

At step BAD the loss is 0/0; -1 for never.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
BAD = int(sys.argv[1])


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits, self.mean = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, y):
        near = torch.exp(-0.5 * (y - self.mean(x)).square())
        return (self.logits(x).softmax(-1) * near).sum(-1)


@torch.compile(backend="eager")
def loss_of(model, x, y):
    likely = model(x, y)
    return -(likely.sum() / y.square().sum()).log()


dist.init_process_group("gloo")
torch.manual_seed(int(os.environ["RANK"]))
model = nn.parallel.DistributedDataParallel(Mixture())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    x = torch.randn(8, 4)
    loss = loss_of(model, x, x[:, :1] * (step != BAD))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"{step} {loss.item():.4f}\n")
dist.destroy_process_group()
