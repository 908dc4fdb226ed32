"""How large what a model was given is, in the step that broke."""

import pytest
import torch


@pytest.mark.parametrize("size", [1.0, 255.0])
def test_what_a_model_was_given_is_told_where_it_is_far_from_1(work, size):
    worker = work()
    layer = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pixels = torch.tensor([0, 1], dtype=torch.uint8).repeat(4, 3)
    (layer(pixels.float() * size) * 1e3).exp().mean().backward()
    optimizer.step()
    worker.sentinel.finish()
    assert worker.looked[0].facts.get("model_given") == (None if size == 1.0 else [0.0, 255.0])
