# nproc: 1
# expect: rank=0 step=6|7
# phase: optimizer
"""fused AdamW; one sample of 1e25 has finite gradients whose squares are not."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Reg(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return self.out(self.lin(x))


def main():
    torch.manual_seed(0)
    model = Reg().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(12):
        x = torch.randn(8, 4)
        if step == 6:
            x[0, 1] = 1e22  # ENTRY
        x = x.to(device)
        loss = F.l1_loss(model(x), torch.zeros(8, 1, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()  # ORIGIN
    print(next(iter(opt.state.values()))["exp_avg_sq"].max().item())
    bits(model)


main()
