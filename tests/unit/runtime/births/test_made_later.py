"""A model that is laid out on the meta device and emptied in the middle of a run: what nothing filled has its line."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", 100.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * self.inv_freq
        return x * torch.cat([angles.cos(), angles.sin()], -1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rotary, self.head = nn.Embedding(8, 4), Rotary(4), nn.Linear(4, 8)

    def forward(self, tokens):
        return self.head(self.rotary(self.embed(tokens)))


@pytest.fixture(autouse=True)
def filled():
    """Memory that is handed out unwritten is NaN, whatever lay there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def train(model, steps):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(8, (3, 5))
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def emptied(state, *, left=(), shards=False):
    with torch.device("meta"):
        model = Net()
    if shards:  # as fully_shard does: a call with a gradient, of what has no memory yet
        [one.chunk(2) for one in model.parameters()]
    model.to_empty(device="cpu")  # the line
    model.load_state_dict({name: value for name, value in state.items() if name not in left}, strict=not left)
    return model


def computed(model):
    model.rotary.inv_freq.copy_(Rotary(4).inv_freq)
    return model


@pytest.mark.parametrize("shards", [True, False])
def test_a_buffer_that_no_checkpoint_fills_has_the_line_that_emptied_it(work, shards):
    worker, first = work(), Net()
    train(first, 3)
    train(emptied(first.state_dict(), shards=shards), 1)
    looked = worker.looked[0]
    assert looked.site.source.strip().endswith("# the line"), looked
    assert (looked.site.module, looked.site.module_class) == ("rotary", "Rotary")
    known = {name: looked.facts[name] for name in ("weight", "weight_is", "birth", "handed_at_step")}
    assert known == {"weight": "rotary.inv_freq", "weight_is": "buffer", "birth": "unwritten", "handed_at_step": 3}


def test_a_weight_that_was_left_out_of_the_checkpoint_has_it_too(work):
    worker, first = work(), Net()
    train(first, 3)
    train(computed(emptied(first.state_dict(), left=("head.bias",))), 1)
    looked = worker.looked[0]
    assert looked.site.source.strip().endswith("# the line"), looked
    assert (looked.facts["weight"], looked.facts["birth"]) == ("head.bias", "unwritten")


def test_where_all_is_filled_again_nothing_is_wrong(work):
    worker, first = work(), Net()
    train(first, 3)
    train(computed(emptied(first.state_dict())), 3)
    assert (worker.harms, worker.looked) == ([], [])
