"""Train a GAN on points of a spiral with a gradient penalty; two networks, two optimizers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_spiral(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    angle = 6 * torch.rand(samples, generator=generator)
    points = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 6
    return TensorDataset(points + 0.02 * torch.randn(samples, 2, generator=generator))


def network(inputs, outputs, width):
    layers = [nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (torch.sqrt(slope.square().sum(-1) + 1e-12) - 1).square().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--critic-steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_spiral(samples=3840, seed=1), args.batch_size, shuffle=True)
    generator, critic = network(4, 2, 32), network(2, 1, 32)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.0, 0.9))
    for batch, (real,) in enumerate(loader):
        fake = generator(torch.randn(len(real), 4))
        critic_loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty(critic, real, fake.detach())
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        if batch % args.critic_steps == 0:
            generator_loss = -critic(fake).mean()
            generator_optimizer.zero_grad()
            generator_loss.backward()
            generator_optimizer.step()
    print(f"critic {critic_loss.item():.4f} generator {generator_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
