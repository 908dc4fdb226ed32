"""Train a sentence tagger with gradient accumulation under DDP; padded words carry no label."""

import argparse
import contextlib
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

NO_LABEL = -100


class Tagger(nn.Module):
    def __init__(self, words, width, tags):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.layer = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, tags)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens))[0])


class Sentences(Dataset):
    """Sentences of one source; one source a worker. A tag is the remainder of the word."""

    def __init__(self, source, count, longest=12):
        generator = torch.Generator().manual_seed(source)
        self.tokens = torch.randint(1, 60, (count, longest), generator=generator)
        length = torch.randint(1, longest + 1, (count, 1), generator=generator)
        self.tokens[torch.arange(longest) >= length] = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        return tokens, torch.where(tokens > 0, tokens % 5, NO_LABEL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Sentences(source=rank, count=320), args.batch_size)
    model = Tagger(words=60, width=24, tags=5)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for batch, (tokens, tags) in enumerate(loader):
        last = batch % args.accumulate == args.accumulate - 1
        with contextlib.nullcontext() if last or not distributed else model.no_sync():
            scores = model(tokens).flatten(0, 1)
            loss = nn.functional.cross_entropy(scores, tags.flatten(), ignore_index=NO_LABEL)
            (loss / args.accumulate).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(f"batch {batch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
