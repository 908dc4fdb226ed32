"""Recognise faces with an additive angular margin: the angle between an embedding and the centre of its person."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AngularMargin(nn.Module):
    def __init__(self, persons, width, margin, scale):
        super().__init__()
        self.centres = nn.Parameter(torch.empty(persons, width))
        self.margin, self.scale = margin, scale

    @torch.no_grad()
    def start_from(self, embedded, person):
        """Put the centre of each person where their last picture is."""
        self.centres[person] = embedded

    def forward(self, embedded, person):
        unit = nn.functional.normalize(embedded, dim=-1).bfloat16()
        centres = nn.functional.normalize(self.centres, dim=-1).bfloat16()
        cosine = (unit @ centres.T).float()
        angle = torch.acos(cosine)
        own = nn.functional.one_hot(person, len(self.centres)).bool()
        return self.scale * torch.cos(torch.where(own, (angle + self.margin).clamp(max=math.pi), angle))


class Embedder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 2 * width), nn.PReLU(), nn.Linear(2 * width, width))

    def forward(self, picture):
        return self.layers(picture)


def load_pictures(persons, pictures, features, seed):
    generator = torch.Generator().manual_seed(seed)
    person = torch.arange(persons).repeat_interleave(pictures)
    face = torch.randn(persons, features, generator=generator)
    return face[person] + 0.5 * torch.randn(len(person), features, generator=generator), person


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    picture, person = load_pictures(persons=40, pictures=8, features=48, seed=3)
    embedder = Embedder(48, args.width)
    head = AngularMargin(persons=40, width=args.width, margin=0.2, scale=16.0)
    head.start_from(embedder(picture), person)
    loader = DataLoader(TensorDataset(picture, person), args.batch_size)
    optimizer = torch.optim.SGD([*embedder.parameters(), *head.parameters()], lr=args.lr, momentum=0.9)
    for step, (batch, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(head(embedder(batch), label), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
