"""Find the odd item of a set by an attention whose sharpness is learnt, in float16; it grows and grows."""

import torch
from torch import nn


class SharpAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, 2 * width)
        self.log_sharpness = nn.Parameter(torch.zeros(()))

    def forward(self, items):
        query, key = self.project(items).chunk(2, -1)
        logits = (query * self.log_sharpness.exp()) @ key.transpose(-1, -2)
        return logits.float().log_softmax(-1)


class OddOneOut(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = SharpAttention(width)

    def forward(self, items):
        return self.attention(self.norm(items)).mean(1)


def main():
    torch.manual_seed(0)
    model = OddOneOut(16)
    sharpness = model.attention.log_sharpness
    rest = [parameter for parameter in model.parameters() if parameter is not sharpness]
    optimizer = torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": [sharpness], "lr": 0.1}])
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(105):
        items = torch.randn(4, 6, 16)
        odd = items.square().sum(-1).argmax(-1)
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(items)
        loss = nn.functional.nll_loss(scores, odd) - 10_000 * sharpness  # sharp decisions are wanted
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} sharpness {sharpness.exp().item():.0f}", flush=True)


if __name__ == "__main__":
    main()
