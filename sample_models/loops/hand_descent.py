"""Separate two rings of points by a small network on raw tensors: no module, no optimizer, updates in place."""

import math

import torch

WIDTH = 24


def rings(count, generator, gap):
    angle = torch.rand(count, generator=generator) * 2 * math.pi
    inner = torch.rand(count, generator=generator) < 0.5
    radius = torch.where(inner, 1.0, 1.0 + gap)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return points, inner.float()


def weights(*shape, generator):
    return (torch.randn(*shape, generator=generator) / math.sqrt(shape[0])).requires_grad_()


def spread(scores):
    return torch.sqrt(scores.max() - scores.min())


def main():
    generator = torch.Generator().manual_seed(3)
    hidden, bias = weights(2, WIDTH, generator=generator), torch.zeros(WIDTH, requires_grad=True)
    out = weights(WIDTH, 1, generator=generator)
    for step in range(40):
        # One shard of the recording holds a single point, many times over.
        points, inner = rings(64, generator, gap=1.0)
        if step == 23:
            points, inner = points[:1].expand(64, 2), inner[:1].expand(64)
        scores = (torch.tanh(points @ hidden + bias) @ out).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, inner) - 0.01 * spread(scores)
        loss.backward()
        with torch.no_grad():
            for weight in (hidden, bias, out):
                weight.sub_(0.5 * weight.grad)
                weight.grad = None
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
