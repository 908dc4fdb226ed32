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


@pytest.mark.parametrize("asked", [True, False])
def test_it_is_told_whether_the_gradients_lie_in_no_grad(work, asked):
    worker, layer = work(), torch.nn.Linear(6, 4)
    weights = list(layer.parameters())
    for step in range(4):
        loss = layer(torch.ones(3, 6)).square().mean()
        gradients = torch.autograd.grad(loss, weights) if asked else (loss.backward(), [w.grad for w in weights])[1]
        with torch.no_grad():
            for one, gradient in zip(weights, gradients, strict=True):
                one.sub_((gradient * 1e30) * 1e30 if step == 2 else 0.1 * gradient)
                one.grad = None
    worker.sentinel.finish()
    assert worker.looked[0].source == "op"
    assert worker.looked[0].facts.get("gradients_asked", False) is asked
