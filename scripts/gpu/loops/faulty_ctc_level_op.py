# nproc: 1
# expect: rank=0 step=5
# bits: no
# options: --level op
"""CTC with lengths on the CPU, every op watched from the first line on: the training is to end with code 0."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 7).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    targets = torch.randint(1, 7, (3, 6), device=device)
    for step in range(9):
        x = torch.randn(10, 3, 8, device=device)
        frames = torch.tensor([10, 3 if step == 5 else 10, 10])
        labels = torch.tensor([3, 4, 2])
        logp = model(x).log_softmax(-1)
        loss = nn.functional.ctc_loss(logp, targets, frames, labels)  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
