# nproc: 1
# expect: clean
# bits: no
# timeout: 110
"""CUDA graph trees over several steps, with an evaluation in between."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
fast = torch.compile(net, mode="reduce-overhead" if device.type == "cuda" else "default")
opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=device.type == "cuda")
for step in range(16):
    torch.compiler.cudagraph_mark_step_begin()
    x = torch.randn(32, 12, device=device)
    loss = ((fast(x) - x.sum(1, keepdim=True)) ** 2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 6 == 5:
        net.eval()
        with torch.no_grad():
            print(step, fast(torch.randn(32, 12, device=device)).abs().mean().item())
        net.train()
bits(net)
