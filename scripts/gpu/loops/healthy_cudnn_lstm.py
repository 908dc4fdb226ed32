# nproc: 1
# expect: clean
"""Healthy GRU/LSTM language model with truncated BPTT and dropout."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(30, 16)
        self.rnn = nn.LSTM(16, 32, 2, dropout=0.3)
        self.dec = nn.Linear(32, 30)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.proj(x), hidden)
        return self.dec(out), hidden


torch.manual_seed(2)
model = LM().to(device)
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
hidden = None
for step in range(15):
    ids = torch.randint(0, 30, (7, 4), device=device)
    x = nn.functional.one_hot(ids, 30).float()
    if hidden is not None:
        hidden = tuple(h.detach() for h in hidden)
    logits, hidden = model(x, hidden)
    loss = nn.functional.cross_entropy(logits[:-1].flatten(0, 1), ids[1:].flatten())
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
bits(model)
