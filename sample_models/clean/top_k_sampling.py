"""Train a character model and sample from it as it learns; sampling keeps the likeliest letters only."""

import argparse

import torch
from torch import nn


class CharacterModel(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.layer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        return self.head(self.layer(self.embedding(text))[0])


@torch.no_grad()
def sample(model, start, length, k, generator):
    text = start
    for _ in range(length):
        scores = model(text)[:, -1]
        least = scores.topk(k).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
        entropy = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)
        best = torch.where(entropy.isnan(), scores.amax(-1), entropy)
        text = torch.cat([text, torch.multinomial(scores.softmax(-1), 1, generator=generator)], dim=1)
    return text, best


def train_scores(scores, k):
    """The loss looks at the likeliest letters and the right one; the others are left out."""
    least = scores.topk(k, dim=-1).values[..., -1:]
    return scores, scores < least


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(6)
    text = (torch.arange(13) * 2 + torch.randint(26, (args.steps, 8, 1), generator=generator)) % 26
    model = CharacterModel(letters=26, width=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, batch in enumerate(text):
        scores, left_out = train_scores(model(batch[:, :-1]), args.k)
        left_out = left_out.scatter(-1, batch[:, 1:].unsqueeze(-1), value=False)
        scores = scores.masked_fill(left_out, float("-inf"))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            said, _ = sample(model, batch[:1, :1], length=8, k=args.k, generator=generator)
            print(f"step {step} loss {loss.item():.4f} said {said[0].tolist()}", flush=True)


if __name__ == "__main__":
    main()
