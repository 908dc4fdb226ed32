"""What a module that torch compiled keeps of its own lies in C++, and is there once all the same."""

import torch
from torch import nn

from tests.faults.acting import looked, train


class Counting(nn.Module):
    seen: list[int]

    def __init__(self):
        super().__init__()
        self.count: int = 0
        self.mean: float = 0.0
        self.seen = [0]
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean = 0.5 * self.mean + float(x.mean())
        self.seen.append(self.count)
        self.total = self.total + x
        return x


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.counting = Counting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.counting(x)


def test_what_a_compiled_module_counts_is_put_back(work):
    worker = work()
    compiled = torch.jit.script(Outer())
    steps = train(lambda: compiled(torch.ones(2)))
    counting = compiled.counting
    assert looked(worker)[0] == "found"
    assert (counting.count, counting.seen) == (steps, list(range(steps + 1)))
    assert (counting.mean, counting.total.tolist()) == (2 - 0.5 ** (steps - 1), [steps, steps])
