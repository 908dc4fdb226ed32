# nproc: 1
# expect: rank=0 step=5
# bits: no
"""CTC with a transcript longer than the audio: the loss is Inf."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 24, bidirectional=True)
        self.out = nn.Linear(48, 7)

    def forward(self, x):
        return F.log_softmax(self.out(self.rnn(x)[0]), -1)


def main():
    torch.manual_seed(0)
    model = Speech().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss()
    for step in range(9):
        x = torch.randn(10, 3, 8, device=device)
        targets = torch.randint(1, 7, (3, 6), device=device)
        frames = torch.tensor([10, 10, 10])
        labels = torch.tensor([3, 4, 2])
        if step == 5:
            frames[1] = 3
        loss = ctc(model(x), targets, frames, labels)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


main()
