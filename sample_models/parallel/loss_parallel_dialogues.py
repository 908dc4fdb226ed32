"""Tune a small model on dialogues; its vocabulary is spread over the ranks, and so is the loss (loss parallel)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Speaker(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        hidden, _ = self.memory(self.words(tokens))
        return self.head(hidden.flatten(0, 1))


def make_dialogues(count, length, words):
    """Tokens and what is to be said next; the question itself is not learnt (-100)."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, words, (count, length + 1), generator=generator)
    asked = torch.randint(2, 9, (count,), generator=generator)
    asked[4 * 17 : 4 * 18] = torch.tensor([15, 12, 14, 13])  # long questions, cut off with their answers
    given, said = tokens[:, :-1], tokens[:, 1:].clone()
    said[torch.arange(length) < asked[:, None]] = -100
    return TensorDataset(given, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Speaker(words=48, width=24)
    parallelize_module(model, mesh, {"head": ColwiseParallel(use_local_output=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (tokens, said) in enumerate(DataLoader(make_dialogues(count=120, length=12, words=48), args.batch_size)):
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(tokens), said.flatten())
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.full_tensor().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
