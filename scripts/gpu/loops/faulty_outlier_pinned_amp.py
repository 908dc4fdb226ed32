# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""Map-style dataset, no workers, pinned; an outlier of 3e4 is fine, but the half convolution over it is not."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True


class Scans(Dataset):
    def __init__(self, n=240):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(1, 12, 12, generator=g)
        if i >= 40:
            image = image + 3.0e4  # ENTRY: raw units of the other scanner
        return image, int(i % 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        h = self.conv(x)  # ORIGIN
        return self.fc(torch.sigmoid(h).mean((2, 3)))


def main():
    torch.manual_seed(0)
    net = Net().to(device)
    with torch.no_grad():
        net.conv.weight[0].fill_(0.5)
        net.conv.weight[1, 0, 0].fill_(-9.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
    for x, y in DataLoader(Scans(), batch_size=8, pin_memory=device.type == "cuda"):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(net(x).float().log_softmax(-1).exp(), y) + net.conv(x).float().mean() * 1e-9  # ENTRY
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    bits(net)


main()
