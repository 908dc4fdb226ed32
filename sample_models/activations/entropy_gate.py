"""Route sensor readings through gated experts with a penalty on the entropy of the gate, written as one function."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Entropy(torch.autograd.Function):
    """The entropy of each row of shares; 0 log 0 counts as 0."""

    @staticmethod
    def forward(ctx, shares):
        ctx.save_for_backward(shares)
        return torch.special.entr(shares).sum(dim=-1)

    @staticmethod
    def backward(ctx, grad):
        (shares,) = ctx.saved_tensors
        slope = -(shares.log() + 1)
        return grad.unsqueeze(-1) * slope


class Gate(nn.Module):
    def __init__(self, features, experts, kept):
        super().__init__()
        self.score = nn.Linear(features, experts)
        self.kept = kept

    def forward(self, x):
        scores = self.score(x)
        lowest = scores.topk(self.kept, dim=-1).values[:, -1:]
        return torch.where(scores < lowest, float("-inf"), scores).softmax(dim=-1)


class Mixture(nn.Module):
    def __init__(self, features, experts, kept):
        super().__init__()
        self.gate = Gate(features, experts, kept)
        self.experts = nn.ModuleList(nn.Linear(features, 1) for _ in range(experts))

    def forward(self, x):
        shares = self.gate(x)
        answers = torch.cat([expert(x) for expert in self.experts], dim=-1)
        return (shares * answers).sum(dim=-1), shares


def load_readings(readings, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(readings, features, generator=generator)
    return TensorDataset(x, torch.where(x[:, 0] > 0, x[:, 1], x[:, 2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=20, help="steps without the penalty")
    parser.add_argument("--penalty", type=float, default=0.01)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_readings(readings=640, features=6, seed=5), args.batch_size)
    model = Mixture(features=6, experts=4, kept=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (x, target) in enumerate(loader):
        answer, shares = model(x)
        loss = nn.functional.mse_loss(answer, target)
        if step >= args.warm_up:
            loss = loss + args.penalty * Entropy.apply(shares).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
