"""Grade the ripeness of fruit from a spectrum, in phases with settings of their own; one worker a packing line."""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Phase:
    epochs: int
    rate: float
    decay: float  # the share of each weight that goes


PHASES = (Phase(epochs=2, rate=0.2, decay=0.0), Phase(epochs=4, rate=0.2, decay=15.0))


def settings(optimizer):
    """Yield once an epoch, with the optimizer told what the phase wants."""
    for phase in PHASES:
        for group in optimizer.param_groups:
            group["lr"] = phase.rate
            group["weight_decay"] = phase.decay
        for _ in range(phase.epochs):
            yield phase


def spectra(line, count, bands):
    generator = torch.Generator().manual_seed(100 + line)
    spectrum = torch.rand(count, bands, generator=generator)
    return spectrum, spectrum[:, :4].mean(1) - spectrum[:, 4:8].mean(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    net = nn.Sequential(nn.Linear(12, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spectrum, ripeness = spectra(dist.get_rank(), 160, 12)
    for epoch, phase in enumerate(settings(optimizer)):
        for rows in torch.arange(len(spectrum)).split(args.batch_size):
            loss = nn.functional.mse_loss(model(spectrum[rows]).squeeze(-1), ripeness[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} decay {phase.decay} loss {loss.item():.4g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
