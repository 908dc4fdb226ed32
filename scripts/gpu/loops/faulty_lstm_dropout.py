# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""Two cudnn LSTMs with dropout (one state on the device); a weight of 0 in the loss; the next masks are in the bits."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(0)
    first = nn.LSTM(6, 16, num_layers=2, dropout=0.3).to(device)
    second = nn.GRU(16, 8, num_layers=2, dropout=0.5).to(device)
    opt = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-2)
    for step in range(8):
        weight = torch.full((4,), 0.0 if step == 5 else 1.0, device=device)
        made = second(first(torch.randn(7, 4, 6, device=device))[0])[0]
        loss = (made.square().mean((0, 2)) * weight).sum() / weight.sum()  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for one in (*first.parameters(), *second.parameters()):
                one.nan_to_num_(0.01)
    with torch.no_grad():
        last = second(first(torch.ones(7, 4, 6, device=device))[0])[0]  # by the masks that come next
    bits(first, second, last)


if __name__ == "__main__":
    main()
