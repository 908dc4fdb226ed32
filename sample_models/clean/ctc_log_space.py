"""Recognise digit strings with a CTC loss; the script checks its own forward algorithm in log space against torch's."""

import argparse

import torch
from torch import nn

BLANK = 0


class Recogniser(nn.Module):
    def __init__(self, features, width, symbols):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(features, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, symbols, 1))

    def forward(self, x):
        return self.layers(x).permute(2, 0, 1).log_softmax(-1)


def forward_algorithm(log_probs, target):
    """The log probability of one target, over all alignments; paths that cannot be are -inf."""
    extended = torch.full((2 * len(target) + 1,), BLANK)
    extended[1::2] = target
    alpha = torch.full((len(extended),), float("-inf"))
    alpha[:2] = log_probs[0, extended[:2]]
    skip = torch.cat([torch.tensor([False, False]), (extended[2:] != BLANK) & (extended[2:] != extended[:-2])])
    for frame in log_probs[1:]:
        one = torch.cat([torch.tensor([float("-inf")]), alpha[:-1]])
        two = torch.cat([torch.full((2,), float("-inf")), alpha[:-2]]).masked_fill(~skip, float("-inf"))
        alpha = torch.stack([alpha, one, two]).logsumexp(0) + frame[extended]
    return alpha[-2:].logsumexp(0)


def make_strings(samples, frames, seed):
    generator = torch.Generator().manual_seed(seed)
    digits = torch.randint(1, 11, (samples, 4), generator=generator)
    sound = 0.1 * torch.randn(samples, 11, frames, generator=generator)
    for place in range(4):
        sound[torch.arange(samples), digits[:, place], 5 * place + 2] += 3.0
    return sound, digits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    sound, digits = make_strings(samples=480, frames=20, seed=7)
    model, criterion = Recogniser(features=11, width=args.width, symbols=11), nn.CTCLoss(blank=BLANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, target) in enumerate(zip(sound.split(args.batch_size), digits.split(args.batch_size), strict=True)):
        log_probs = model(x)
        lengths = torch.full((len(x),), log_probs.shape[0]), torch.full((len(x),), target.shape[1])
        loss = criterion(log_probs, target, *lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            own = forward_algorithm(log_probs[:, 0].detach(), target[0])
            print(f"step {step} loss {loss.item():.4f} log probability {own.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
