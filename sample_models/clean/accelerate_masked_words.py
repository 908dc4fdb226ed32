"""Guess hidden words with Accelerate in bfloat16, on two workers; padded places are masked with -inf."""

import argparse
import gc

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.query = nn.Linear(width, width)
        self.head = nn.Linear(width, words)

    def forward(self, words, padded):
        x = self.embedding(words)
        scores = self.query(x) @ x.transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(padded[:, None, :], float("-inf"))
        return self.head(x + scores.softmax(-1) @ x)


def make_sentences(count, length, words):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, words, (count, length), generator=generator)
    size = torch.randint(3, length + 1, (count, 1), generator=generator)
    padded = torch.arange(length) >= size
    hidden = (torch.rand(count, length, generator=generator) < 0.3) & ~padded
    return TensorDataset(target.masked_fill(hidden, 1), padded, target.masked_fill(padded, -100))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = Encoder(words=40, width=args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=200)
    loader = DataLoader(make_sentences(count=640, length=12, words=40), args.batch_size, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, (words, padded, target) in enumerate(loader):
        with accelerator.accumulate(model):
            logits = model(words, padded)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
