"""A state that a loop carries from step to step, without its graph, is made again by what the loop did to it."""

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.noted import pace


@pytest.mark.parametrize("short", [0.0, 1e9])
@pytest.mark.parametrize("plain", [lambda h: h.detach(), lambda h: h.data])
def test_what_the_loop_makes_of_a_carried_state_has_its_line(short, plain, work, monkeypatch):
    monkeypatch.setattr(pace, "_SHORT", short)
    worker, cell, head = work(), nn.GRUCell(4, 8), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.05)
    h = torch.zeros(8, 8)
    for step in range(9):
        loss = 0.0
        for _ in range(2):
            h = cell(torch.randn(8, 4), h)
            loss = loss + head(h).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
        optimizer.step()
        h = plain(h)
        h, second = torch.split(h, 4, dim=1)
        scale = second.abs().max() * (step != 7)
        second = second * 0 / scale + second
        h = torch.cat([h, second], 1)
    looked = worker.looked[0]
    assert (looked.step, looked.source, looked.site.op) == (8, "op", "aten.div.Tensor"), looked
    assert looked.site.source.strip() == "second = second * 0 / scale + second"
