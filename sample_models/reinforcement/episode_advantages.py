"""Policy gradient on short games: returns are standardised within each minibatch. One table of games a worker, DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Policy(nn.Module):
    def __init__(self, observations, actions, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observations, width), nn.Tanh(), nn.Linear(width, actions))

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.layers(x))


def play(policy, generator, moves):
    """Play ``moves`` moves; the reward is for the action that matches the sign of the first observation."""
    with torch.no_grad():
        x = torch.randn(moves, 4, generator=generator)
        action = torch.multinomial(policy(x).probs, 1, generator=generator).squeeze(1)
        reward = (action == (x[:, 0] > 0).long()).float() - 0.5
        returns = reward.flip(0).cumsum(0).flip(0) / 4
    return x, action, returns


def standardise(returns):
    return (returns - returns.mean()) / (returns.std() + 1e-8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(10 + rank)
    lengths = [[60, 55, 60, 58, 62], [62, 52, 49, 60, 58]][rank % 2]
    policy = Policy(observations=4, actions=2, width=args.width)
    trained = DistributedDataParallel(policy) if distributed else policy
    optimizer = torch.optim.Adam(trained.parameters(), lr=args.lr)
    for game in range(args.games):
        x, action, returns = play(policy, generator, lengths[game % len(lengths)])
        for rows in torch.arange(len(x)).split(args.batch_size):
            chances = trained(x[rows])
            loss = -(chances.log_prob(action[rows]) * standardise(returns[rows])).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained.parameters(), 0.5)
            optimizer.step()
        if rank == 0:
            print(f"game {game} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
