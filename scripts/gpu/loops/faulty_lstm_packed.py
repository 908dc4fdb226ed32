# nproc: 1
# expect: rank=0 step=6
# phase: forward
"""A packed cudnn LSTM tagger; the loss is averaged over the tokens of each length bucket."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 24, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(24, 5)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = self.lstm(packed)
        h, _ = pad_packed_sequence(h, batch_first=True, total_length=x.shape[1])
        return self.out(h)


def masked_loss(logits, tags, weight):
    each = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), reduction="none").view_as(tags)
    return ((each * weight).sum(1) / weight.sum(1)).mean()  # ORIGIN


def main():
    torch.manual_seed(0)
    model = Tagger().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(10):
        x = torch.randn(6, 9, 10)
        lengths = torch.randint(2, 10, (6,))
        tags = torch.randint(0, 5, (6, 9))
        weight = (torch.arange(9)[None] < lengths[:, None]).float()
        if step == 6:
            weight[4] = 0.0
        loss = masked_loss(model(x.to(device), lengths), tags.to(device), weight.to(device))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
