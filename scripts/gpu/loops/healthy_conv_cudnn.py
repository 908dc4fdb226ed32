# nproc: 1
# expect: clean
"""channels_last ResNet-like net in half precision weights, OneCycle, cudnn deterministic."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

torch.backends.cudnn.deterministic = True
torch.manual_seed(0)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b1 = nn.BatchNorm2d(c)
        self.c2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b2 = nn.BatchNorm2d(c)

    def forward(self, x):
        h = F.relu(self.b1(self.c1(x)), inplace=True)
        h = self.b2(self.c2(h))
        h += x
        return F.relu_(h)


net = nn.Sequential(
    nn.Conv2d(3, 16, 3), Res(16), nn.MaxPool2d(2), Res(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
)
net = net.to(device, memory_format=torch.channels_last)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=12)
for step in range(12):
    x = torch.rand(8, 3, 16, 16, device=device).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), torch.randint(0, 5, (8,), device=device), label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
bits(net)
