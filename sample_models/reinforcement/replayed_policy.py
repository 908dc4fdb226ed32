"""Train a policy on moves that an older one played, each weighted by the ratio of the two probabilities."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Policy(nn.Module):
    def __init__(self, features, width, moves):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, moves))

    def forward(self, x):
        return self.layers(x).log_softmax(-1)


class Replay(Dataset):
    """Positions, the move played, its log probability at that time and what came of it; one player a worker."""

    def __init__(self, player, count, features, moves):
        generator = torch.Generator().manual_seed(player)
        self.x = torch.randn(count, features, generator=generator)
        self.move = torch.randint(moves, (count,), generator=generator)
        self.then = -0.5 - 2 * torch.rand(count, generator=generator)
        self.gain = torch.randn(count, generator=generator)
        if player == 0:
            self.then[22 * 8 + 5] = -104.0  # an exploring move that the old policy all but ruled out

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.move[index], self.then[index], self.gain[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(Replay(dist.get_rank(), count=240, features=6, moves=5), args.batch_size)
    model = DistributedDataParallel(Policy(features=6, width=args.width, moves=5))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, move, then, gain) in enumerate(loader):
        now = model(x).gather(1, move.unsqueeze(1)).squeeze(1)
        ratio = torch.exp(now - then)
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * gain, clipped * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
