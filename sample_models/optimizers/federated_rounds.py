"""Federated averaging: each round the clients train copies of the model, which are averaged by their new examples."""

import argparse
import copy

import torch
from torch import nn


def make_client(number, rounds):
    """What a client sees in each round: a few examples, or none."""
    generator = torch.Generator().manual_seed(number)
    for round_ in range(rounds):
        count = 0 if round_ % 5 == 3 and number else int(torch.randint(4, 12, (), generator=generator))
        count = 0 if round_ == 8 else count  # a public holiday
        x = torch.randn(count, 4, generator=generator)
        yield x, x.sum(1, keepdim=True).tanh()


def train(model, x, y, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        if len(x):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return model.state_dict()


def average(states, counts):
    shares = torch.tensor(counts, dtype=torch.float32)
    shares = shares / shares.sum()
    names = states[0]
    return {name: sum(share * state[name] for share, state in zip(shares, states, strict=True)) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    clients = [make_client(number, args.rounds) for number in range(args.clients)]
    for round_ in range(args.rounds):
        batches = [next(client) for client in clients]
        states = [train(copy.deepcopy(model), x, y, args.lr) for x, y in batches]
        model.load_state_dict(average(states, [len(x) for x, _ in batches]))
        x, y = torch.randn(64, 4), torch.zeros(64, 1)
        y = x.sum(1, keepdim=True).tanh()
        print(f"round {round_} error {nn.functional.mse_loss(model(x), y).item():.4f}", flush=True)


if __name__ == "__main__":
    main()
