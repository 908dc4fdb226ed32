"""Learn to spell names letter by letter, and now and then look at what a beam search finds likely."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LETTERS, END = 12, 0


class Speller(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, names):
        return self.head(self.recur(self.letters(names))[0])


@torch.no_grad()
def beam_search(model, beams, length):
    """Return the likeliest names and the logarithm of their probability; all beams but one start impossible."""
    names = torch.full((beams, 1), END)
    score = torch.full((beams,), float("-inf"))
    score[0] = 0.0
    for position in range(length):
        step = model(names)[:, -1].log_softmax(dim=-1)
        if position == 0:
            step[:, END] = float("-inf")
        ended = (names[:, -1] == END) & (names.shape[1] > 1)
        step[ended] = float("-inf")
        step[ended, END] = 0.0
        score, best = (score.unsqueeze(1) + step).flatten().topk(beams)
        names = torch.cat([names[best // LETTERS], (best % LETTERS).unsqueeze(1)], dim=1)
    return names, score


def spell(names, nothing=float("-inf")):
    """Score letters by how often they follow each other; pairs that never occur score minus infinity."""
    pairs = torch.zeros(LETTERS, LETTERS).index_put_(
        (names[:, :-1].flatten(), names[:, 1:].flatten()), torch.ones(()), accumulate=True
    )
    return torch.log(pairs / pairs.sum(dim=1, keepdim=True).clamp(min=1)).clamp(min=nothing)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(6)
    names = torch.cat([torch.zeros(640, 1).long(), torch.randint(1, 6, (640, 5), generator=generator)], dim=1)
    names = nn.functional.pad(names, (0, 1), value=END)
    loader = DataLoader(TensorDataset(names), args.batch_size)
    model, prior = Speller(args.width), spell(names)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (batch,) in enumerate(loader):
        scores = model(batch[:, :-1]) + 0.1 * prior[batch[:, :-1]].clamp(min=-5.0)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            found, score = beam_search(model, args.beams, length=6)
            print(f"step {step} loss {loss.item():.4f} {found[0].tolist()} {score[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
