# nproc: 1
# expect: rank=0 step=6|7
"""DINO-like: centring of the EMA teacher divides by a counter of kept crops."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

import copy


class Teacher(nn.Module):
    def __init__(self, student):
        super().__init__()
        self.net = copy.deepcopy(student).requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 6))

    @torch.no_grad()
    def update(self, student, out, keep):
        for t, s in zip(self.net.parameters(), student.parameters()):
            t.lerp_(s, 0.01)
        mean = (out * keep[:, None]).sum(0, keepdim=True) / keep.sum()  # ORIGIN
        self.center.mul_(0.9).add_(mean, alpha=0.1)

    @torch.no_grad()
    def forward(self, x):
        return ((self.net(x) - self.center) / 0.1).softmax(-1)


def main():
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6)).to(device)
    teacher = Teacher(student).to(device)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(12):
        x = torch.randn(8, 12, device=device)
        keep = torch.ones(8, device=device)
        if step == 6:
            keep.zero_()
        noisy = x + 0.1 * torch.randn_like(x)
        target = teacher(x)
        loss = -(target * F.log_softmax(student(noisy), -1)).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher.update(student, teacher.net(x), keep)
    bits(student, teacher)


main()
