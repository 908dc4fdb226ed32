# nproc: 1
# expect: rank=0 step=5
# phase: forward
"""nn.TransformerEncoder; one sequence of the batch is all padding."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 3)

    def forward(self, x, pad):
        h = self.enc(self.emb(x), src_key_padding_mask=pad)  # ORIGIN: where the kernel does not care for full rows
        keep = (~pad).unsqueeze(-1).float()
        return self.head((h * keep).sum(1) / keep.sum(1))  # ORIGIN


def main():
    torch.manual_seed(0)
    model = Classifier().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=12)
    for step in range(12):
        x = torch.randn(6, 10, 12)
        n = torch.randint(2, 11, (6,))
        if step == 5:
            n[3] = 0
        pad = torch.arange(10)[None] >= n[:, None]
        x, pad = x.to(device), pad.to(device)
        loss = F.cross_entropy(model(x, pad), torch.randint(0, 3, (6,)).to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    bits(model)


if __name__ == "__main__":
    main()
