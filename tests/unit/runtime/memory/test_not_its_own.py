"""Memory that is not torch's own is not looked at behind the script's back: it may be gone by then."""

import mmap

import torch
from torch import nn

from nandiag.runtime.memory.later.lasting import lasting


def test_what_lies_in_a_mapped_file_is_not_looked_at_when_the_step_ends(work, tmp_path):
    worker, file = work(), tmp_path / "rows.bin"
    file.write_bytes(b"\0" * 256)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    loss = model(torch.ones(1, 4)).sum()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        rows = torch.frombuffer(mapped, dtype=torch.float32)
        part, own = rows[:8], rows + 1.0
        left = {id(one) for one in lasting(worker.capture.tape)}
        assert not {id(rows), id(part)} & left
        assert id(own) in left
    assert loss.requires_grad
