# nproc: 1
# expect: clean
"""fp16 with the default scale: the first steps are skipped while the scaler looks for its scale."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24)
for step in range(24):
    x = torch.randn(64, 32, device=device)
    y = 30 * x.sum(1, keepdim=True)
    opt.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16):
        out = model(x)
        loss = nn.functional.mse_loss(out.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
print("scale", scaler.get_scale())
bits(model)
