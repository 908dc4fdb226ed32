"""Train a GAN on small drawings with a gradient penalty on real samples; two networks, two optimizers."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Generator(nn.Module):
    def __init__(self, noise, pixels):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(noise, 32), nn.ReLU(), nn.Linear(32, pixels), nn.Sigmoid())

    def forward(self, z):
        return self.layers(z)


class Critic(nn.Module):
    def __init__(self, pixels, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(pixels, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False), nn.ReLU(),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def penalty(critic, real):
    """How far the slope of the critic at real samples is from 1."""
    real = real.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
    length = torch.sqrt(slope.square().sum(-1))
    return (length - 1).square().mean()


def make_drawings(samples, pixels, seed):
    generator = torch.Generator().manual_seed(seed)
    ink = torch.rand(samples, pixels, generator=generator)
    drawing = (ink - 0.6).clamp(min=0) * 2.5
    drawing[333] = 0.0  # an empty page
    return TensorDataset(drawing)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--critic-steps", type=int, default=2)
    parser.add_argument("--weight", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_drawings(samples=640, pixels=25, seed=5), args.batch_size)
    generator, critic = Generator(noise=8, pixels=25), Critic(pixels=25, width=32)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.5, 0.9))
    for batch, (real,) in enumerate(loader):
        fake = generator(torch.randn(len(real), 8))
        critic_loss = critic(fake.detach()).mean() - critic(real).mean() + args.weight * penalty(critic, real)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        if batch % args.critic_steps == 0:
            generator_loss = -critic(fake).mean()
            generator_optimizer.zero_grad()
            generator_loss.backward()
            generator_optimizer.step()
            print(f"batch {batch} critic {critic_loss.item():.4f} generator {generator_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
