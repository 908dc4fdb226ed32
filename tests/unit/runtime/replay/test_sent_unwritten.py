"""Memory of which a part was never written goes into a collective: in a replay other numbers lie there."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.runtime.births import births
from nandiag.runtime.replay.trace.tracer import Tracer


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gathered(rows, *, bad):
    padded = torch.empty(4, 3)
    padded[:2] = rows
    with torch._C.DisableTorchFunction():
        padded[2:].fill_(math.inf if bad else 0.0)  # as it lay there
    parts = [torch.zeros(4, 3)]
    dist.all_gather(parts, padded)
    return torch.cat(parts)


@pytest.fixture
def other_numbers(monkeypatch):
    """What a replay is handed unwritten holds zeros by chance."""
    hand_out = Tracer._hand_out

    def zeroed(tracer, op, outputs, output):
        with tracer.still(), torch.no_grad():
            for one in outputs:
                one.zero_()
        return hand_out(tracer, op, outputs, output)

    monkeypatch.setattr(Tracer, "_hand_out", zeroed)


def test_what_nobody_wrote_and_was_sent_leads_to_who_handed_it_out(work, alone, other_numbers, monkeypatch):
    monkeypatch.setattr(births, "has_peers", lambda: True)  # who may write into what is received, unseen
    worker = work(on_anomaly="continue")
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        given = model(torch.ones(2, 3))
        (given @ gathered(given.detach(), bad=step == 2).t()).square().mean().backward()
        optimizer.step()
    look = worker.looked[0]
    assert (look.source, look.site.op) == ("op", "aten.empty.memory_format")
    assert look.outputs[0].posinf == 6
    assert look.outputs[0].first_bad == (2, 0)
    assert look.facts["read_at"][1] == gathered.__code__.co_firstlineno + 6
