"""A whole training step in a CUDA graph: nothing is seen of what its replays do, and that is what is told."""

import pytest
import torch
from torch import nn

from nandiag.events import Note
from nandiag.runtime.watch import sentinel

SEEN, REPLAYS, BAD = 2, 20, 13


@pytest.fixture
def captured(graph, monkeypatch):
    """Return a function that makes a graph of a whole step, as in ``with torch.cuda.graph(...)``."""

    def capture(work, optimizer):
        made = graph(work)
        made.capture_begin()
        monkeypatch.setattr(sentinel, "capturing", lambda: True)
        optimizer.step()
        monkeypatch.setattr(sentinel, "capturing", lambda: False)
        made.capture_end()
        return made

    return capture


def train(capture, bad=None):
    model, count = nn.Linear(4, 1), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(SEEN):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    def step():
        count[0] += 1
        model.weight.detach().numpy()[:] *= float("nan") if count[0] == bad else 0.5

    made = capture(step, optimizer)
    for _ in range(REPLAYS):
        made.replay()
    return model, optimizer, made


def test_weights_that_a_graph_made_bad_are_told_with_its_replays(work, captured):
    worker = work()
    held = train(captured, BAD)
    worker.sentinel.finish()
    harm = worker.harms[0]
    assert (harm.behind, harm.replays, harm.bad_between) == (True, REPLAYS, (BAD - 1, BAD)), held


def test_later_replays_are_looked_behind_once_a_second(work, captured):
    worker = work()
    worker.sentinel.judge.graphs.first = 8
    held = train(captured, BAD)
    worker.sentinel.finish()
    assert worker.harms[0].bad_between == (8, REPLAYS), held


def test_of_steps_that_were_well_it_is_told_that_nothing_was_seen(work, captured):
    worker = work()
    held = train(captured)
    worker.sentinel.finish()
    assert worker.harms == [], held
    assert [one.text for one in worker.events(Note)] == ["20 steps ran inside a CUDA graph and were not watched."]


def test_an_update_that_is_seen_leaves_no_doubt_of_the_script_s_own_code(work, captured):
    worker = work()
    model, optimizer, _ = train(captured)
    optimizer.step()
    model.weight.data = model.weight.detach() / torch.zeros(1, 4) * 0.0
    worker.sentinel.finish()
    harm = worker.harms[0]
    assert (harm.behind, harm.replays) == (True, 0)


def test_graphs_that_run_a_part_of_the_model_hide_no_step(work, graph):
    worker, made = work(), graph(lambda: None)
    worker.sentinel.judge.graphs.replayed(made, "torch.cuda.graphs")
    worker.sentinel.finish()
    assert worker.events(Note) == []
    assert worker.sentinel.judge.graphs.told() == {}
