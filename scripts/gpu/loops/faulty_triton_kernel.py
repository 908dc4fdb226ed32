# nproc: 1
# expect: rank=0 step=7
# cuda-only
# timeout: 100
"""A Triton row-normalise in an autograd.Function without an epsilon."""

import torch
import triton
import triton.language as tl
from torch import nn
from digest import bits


@triton.jit
def _rms(x_ptr, y_ptr, r_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n)
    tl.store(r_ptr + row, r)
    tl.store(y_ptr + row * n + cols, x * r, mask=mask)


class RMS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        r = torch.empty(x.shape[0], device=x.device)
        _rms[(x.shape[0],)](x, y, r, x.shape[1], BLOCK=64)  # ORIGIN
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    def backward(ctx, g):
        y, r = ctx.saved_tensors
        return (g - y * (g * y).mean(-1, keepdim=True)) * r[:, None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 48, bias=False)
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        return self.out(RMS.apply(self.fc(x)))  # ORIGIN


def main():
    torch.manual_seed(0)
    model = Block().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)
    for step in range(12):
        x = torch.randn(16, 20, device="cuda")
        if step == 7:
            x[5].zero_()
        y = torch.randint(0, 2, (16,), device="cuda")
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
