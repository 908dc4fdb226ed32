"""Logistic regression without modules or optimizers: plain tensors, autograd, and an update written by hand."""

import argparse

import torch


def make_patients(samples, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, features, generator=generator)
    x[25 * 16 + 7] *= 40.0  # a blood value in other units
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).float()


def predict(weights, x):
    hidden = torch.tanh(x @ weights["w1"] + weights["b1"])
    return torch.sigmoid(x[:, 0] * (hidden @ weights["w2"]).abs() + hidden @ weights["w2"])


def cross_entropy(chance, sick):
    return -(sick * torch.log(chance) + (1 - sick) * torch.log(1 - chance)).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)

    x, sick = make_patients(samples=640, features=6, seed=7)
    weights = {
        "w1": (0.3 * torch.randn(6, args.width)).requires_grad_(),
        "b1": torch.zeros(args.width, requires_grad=True),
        "w2": (0.3 * torch.randn(args.width)).requires_grad_(),
    }
    for step, start in enumerate(range(0, len(x), args.batch_size)):
        rows = slice(start, start + args.batch_size)
        loss = cross_entropy(predict(weights, x[rows]), sick[rows])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for weight, gradient in zip(weights.values(), gradients, strict=True):
                weight.sub_(args.lr * gradient)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
