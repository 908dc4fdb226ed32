# nproc: 1
# expect: rank=0 step=5
"""Per-sample gradients by torch.func, clipped to norm 1 by hand (DP-SGD)."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from torch.func import functional_call, grad, vmap


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)

    def loss_of(params, x, y):
        return torch.relu(functional_call(net, params, (x[None],)).squeeze() - y)

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))
    for step in range(9):
        x = torch.randn(12, 5, device=device)
        y = torch.full((12,), -5.0, device=device)
        if step == 5:
            y[3] = 50.0
        params = {k: v.detach() for k, v in net.named_parameters()}
        grads = each(params, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        for name, p in net.named_parameters():
            g = grads[name]
            p.grad = (g / norm.view(-1, *[1] * (g.dim() - 1))).mean(0)  # ORIGIN
        opt.step()  # ENTRY
    bits(net)


main()
