"""Few-shot classification of bird calls: each class is the mean of its support examples; episodes from a sampler."""

import argparse

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, call):
        return self.layers(call)


def load_calls(calls, species, features, seed):
    generator = torch.Generator().manual_seed(seed)
    species_of = torch.multinomial(torch.logspace(0, -1.05, species), calls, replacement=True, generator=generator)
    centre = torch.randn(species, features, generator=generator)
    return centre[species_of] + torch.randn(calls, features, generator=generator), species_of


def episodes(calls, species_of, size, seed):
    """Cut the recordings of each day into a support set and a query set."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(calls), generator=generator)
    for picked in order.split(size):
        support, query = picked[: size * 2 // 3], picked[size * 2 // 3 :]
        yield (calls[support], species_of[support]), (calls[query], species_of[query])


def prototypes(embedded, species_of, species):
    return torch.stack([embedded[species_of == label].mean(dim=0) for label in range(species)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--species", type=int, default=5)
    parser.add_argument("--size", type=int, default=90)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    calls, species_of = load_calls(calls=4500, species=args.species, features=20, seed=3)
    encoder = Encoder(features=20, width=args.width)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=args.lr)
    for step, ((support, support_of), (query, query_of)) in enumerate(episodes(calls, species_of, args.size, seed=8)):
        centres = prototypes(encoder(support), support_of, args.species)
        distance = (encoder(query).unsqueeze(1) - centres).square().sum(dim=-1)
        loss = nn.functional.cross_entropy(-distance, query_of)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
