"""Train a critic to tell drawn sketches from generated ones, its slope held near one by a gradient penalty."""

import argparse

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, points, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(points, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)

    def forward(self, sketch):
        return self.score(self.body(sketch)).squeeze(-1)


class Generator(nn.Module):
    def __init__(self, noise, points, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, points))

    def forward(self, noise):
        return self.layers(noise)


def slope_penalty(critic, real, fake):
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    length = slope.square().sum(dim=1).sqrt()
    return (length - 1).square().mean()


def train(critic, generator, sketches, args):
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.0, 0.9))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.0, 0.9))
    for step, real in enumerate(sketches.split(args.batch_size)):
        fake = generator(torch.randn(len(real), args.noise))
        if step >= args.critic_from:
            penalty = slope_penalty(critic, real, fake.detach())
            critic_loss = critic(fake.detach()).mean() - critic(real).mean() + args.penalty * penalty
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
        generator_loss = nn.functional.mse_loss(fake.mean(dim=0), real.mean(dim=0)) - critic(fake).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        if step % 10 == 0:
            print(f"step {step} generator {generator_loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--critic-from", type=int, default=15, help="steps of the generator alone, at first")
    parser.add_argument("--noise", type=int, default=4)
    parser.add_argument("--penalty", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    sketches = torch.randn(640, 20, generator=torch.Generator().manual_seed(1)).cumsum(dim=1)
    critic, generator = Critic(20, width=32), Generator(args.noise, 20, width=32)
    nn.init.zeros_(critic.score.weight)
    train(critic, generator, sketches, args)


if __name__ == "__main__":
    main()
