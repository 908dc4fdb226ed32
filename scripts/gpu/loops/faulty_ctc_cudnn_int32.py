# nproc: 1
# expect: rank=0 step=5
# bits: no
"""CTC as cuDNN takes it (flat int32 targets on the CPU, int64 lengths), and the loss is divided by a count of 0."""

import torch
from torch import nn
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 7).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    labels = torch.tensor([3, 4, 2])
    targets = torch.randint(1, 7, (9,), dtype=torch.int32)
    frames = torch.full((3,), 10)
    for step in range(9):
        x = torch.randn(10, 3, 8, device=device)
        kept = torch.full((), 0.0 if step == 5 else 3.0, device=device)
        each = nn.functional.ctc_loss(model(x).log_softmax(-1), targets, frames, labels, reduction="none")
        loss = (each * kept).sum() / kept  # ORIGIN
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


if __name__ == "__main__":
    main()
