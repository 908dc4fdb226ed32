# nproc: 1
# expect: rank=0 step=8
# phase: forward
"""bf16 weights; a KL written by hand takes log of a student probability of 0."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kl(teacher, student):
    p = teacher.softmax(-1)
    q = student.softmax(-1)
    return (p * (p.clamp_min(1e-6).log() - q.log())).sum(-1).mean()  # ORIGIN


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.1))
        self.out = nn.Linear(48, 10)

    def forward(self, x, temperature):
        return self.out(self.body(x)) / temperature


torch.manual_seed(0)
student = Student().to(device, torch.bfloat16)
teacher = nn.Linear(24, 10).to(device, torch.bfloat16).requires_grad_(False)
opt = torch.optim.AdamW(student.parameters(), lr=1e-3, foreach=True)
temperatures = [2.0] * 8 + [1e-3] + [2.0] * 5
for step, t in enumerate(temperatures):
    x = torch.randn(16, 24, device=device, dtype=torch.bfloat16)
    loss = kl(teacher(x), student(x, t))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
bits(student)
