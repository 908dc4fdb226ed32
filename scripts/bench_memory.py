"""A few steps of a language model with large logits; prints the peak of this process's resident set (bench_memory)."""

from __future__ import annotations

import resource

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, TOKENS, STEPS = 32_000, 128, 2048, 6


def main() -> None:
    """Train, and print the peak in MiB."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
    head = nn.Linear(WIDTH, VOCABULARY)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (TOKENS,))
        logits = head(model(tokens))
        loss = functional.cross_entropy(logits.float(), tokens.roll(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"peak_mib {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)


if __name__ == "__main__":
    main()
