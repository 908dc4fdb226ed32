"""Fine-tune a small language model on chats: only the words of the assistant count; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORED = -100


class Chats(Dataset):
    """A prompt and its answer, cut to the context length; the words of the prompt bear no label."""

    def __init__(self, chats, words, context, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, words, (chats, context), generator=generator)
        prompt = 3 + torch.randint(context // 2, (chats,), generator=generator)
        prompt[[73, 75]] = context + 40
        self.labels = self.tokens.masked_fill(torch.arange(context) < prompt.unsqueeze(1), IGNORED)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


class LanguageModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        hidden, _ = self.recur(self.embedding(tokens))
        return self.head(hidden)


def next_word_loss(logits, labels):
    shifted = logits[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(shifted, labels[:, 1:].flatten(), ignore_index=IGNORED)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Chats(chats=160, words=64, context=24, seed=6)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = LanguageModel(words=64, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for batch, (tokens, labels) in enumerate(loader):
        loss = next_word_loss(model(tokens), labels)
        (loss / args.accumulate).backward()
        if (batch + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0 and batch % 8 == 0:
            print(f"batch {batch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
