"""Actor and critic for a pendulum-like task, learned from a log of a human driver's actions between -1 and 1."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Actor(nn.Module):
    """A normal distribution squashed by tanh."""

    def __init__(self, observations, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, width), nn.ReLU())
        self.mean = nn.Linear(width, 1)
        self.spread = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.distributions.Normal(self.mean(self.body(x)), self.spread.exp())

    def log_prob(self, x, raw):
        """The log density of the action that ``raw`` becomes by tanh."""
        density = self(x).log_prob(raw)
        return (density - torch.log(1 - torch.tanh(raw) ** 2)).sum(-1)


class Critic(nn.Module):
    def __init__(self, observations, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observations, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def make_log(moves, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(moves, 3, generator=generator)
    raw = (x[:, :1] - x[:, 1:2]) + 0.3 * torch.randn(moves, 1, generator=generator)
    raw[404] = 14.0  # full lock
    reward = -x.square().sum(1)
    return TensorDataset(x, raw, reward)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_log(moves=960, seed=6), args.batch_size)
    actor, critic = Actor(3, args.width), Critic(3, args.width)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.lr)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr)
    for step, (x, raw, reward) in enumerate(loader):
        value = critic(x)
        critic_loss = nn.functional.smooth_l1_loss(value, reward)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        advantage = (reward - value).detach()
        actor_loss = -(actor.log_prob(x, raw) * advantage.clamp(min=-5, max=5)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        if step % 5 == 0:
            print(f"step {step} critic {critic_loss.item():.4f} actor {actor_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
