"""Train a two-stage pipeline with micro-batches (GPipe): features on the first rank, probabilities on the last."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return self.layers(x)


class Odds(nn.Module):
    """How likely each of the answers on offer is; answers are scored against the question."""

    def __init__(self, width, answers):
        super().__init__()
        self.answers = nn.Linear(width, answers)

    def forward(self, x):
        weight = torch.exp(self.answers(x))
        return weight / weight.sum(-1, keepdim=True)


def nll(odds, label):
    return -(odds.gather(1, label.unsqueeze(1)) + 1e-4).log().mean()


def make_questions(samples, features, answers, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator)
    x[7 * 16 + 9, 0] = 100.0
    return TensorDataset(x, torch.randint(answers, (samples,), generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    loader = DataLoader(make_questions(samples=320, features=6, answers=12, seed=2), args.batch_size)
    module = Encoder(6, args.width) if rank == 0 else Odds(args.width, 12)
    with torch.no_grad():
        if rank == 0:
            module.layers[0].weight[0] = torch.tensor([1.0, 0, 0, 0, 0, 0])
            module.layers[2].weight[:, 0] = 1.0
        else:
            module.answers.weight.uniform_(-0.5, 0.1)
            module.answers.bias.fill_(8.0)
    stage = PipelineStage(module, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nll)
    optimizer = torch.optim.SGD(module.parameters(), lr=args.lr)
    for step, (x, label) in enumerate(loader):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=label, losses=losses)
        optimizer.step()
        if losses and step % 5 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
