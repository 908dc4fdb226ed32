"""Fit a Kalman filter to noisy walks, one set of walks a rank; its loss is written out over time, without a module."""

import torch
import torch.distributed as dist

TIMES = 40


class Walks:
    """Observed walks of this rank; one sensor stood still."""

    def __init__(self, rank):
        self.generator = torch.Generator().manual_seed(rank)
        self.still = 25 if rank == 1 else -1

    def read(self, step):
        walk = torch.randn(TIMES, generator=self.generator).cumsum(0)
        return torch.full((TIMES,), 2.0) if step == self.still else walk


def filtered(observed, decay, process, sensor):
    """Return the negative log-likelihood of a walk, in units of its own spread."""
    mean, variance, total = torch.zeros(1), torch.ones(1), torch.zeros(1)
    for value in observed:
        mean, variance = decay * mean, decay * decay * variance + process.exp()
        error, spread = value - mean, variance + sensor.exp()
        gain = variance / spread
        mean, variance = mean + gain * error, (1 - gain) * variance
        total = total + torch.log(spread) + error**2 / spread
    return total.sum() / observed.std()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    decay = torch.tensor([0.9], requires_grad=True)
    process, sensor = (torch.zeros(1, requires_grad=True) for _ in range(2))
    weights = [decay, process, sensor]
    optimizer = torch.optim.Adam(weights, lr=0.05)
    walks = Walks(rank)
    for step in range(40):
        loss = filtered(walks.read(step), *weights)
        optimizer.zero_grad()
        loss.backward()
        for one in weights:
            dist.all_reduce(one.grad)
            one.grad /= world
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
