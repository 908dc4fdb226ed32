"""Train until the validation error stops falling; the network also says how sure it is, which only the log shows."""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecast(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.mean = nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.body(x)
        active = (hidden > 0).float()
        effort = active.log().sum(dim=1) / active.sum(dim=1).log()
        return self.mean(hidden).squeeze(1), {"effort": effort, "peak": hidden.max(dim=1).values}


class EarlyStopping:
    """Says when the error has not fallen for a while; before the first epoch the best error is infinite."""

    def __init__(self, patience):
        self.patience, self.waited = patience, 0
        self.best = torch.tensor(float("inf"))
        self.weights = None

    def should_stop(self, error, model):
        gain = self.best - error
        if gain > 1e-4:
            self.best, self.waited, self.weights = error, 0, copy.deepcopy(model.state_dict())
        else:
            self.waited += 1
        return self.waited >= self.patience


@torch.no_grad()
def validation_error(model, x, y):
    model.eval()
    predicted, details = model(x)
    model.train()
    return (predicted - y).abs().mean(), details["effort"].mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(5)
    x = torch.randn(400, 6, generator=generator)
    y = x[:, 0] + 0.5 * x[:, 1] ** 2
    loader = DataLoader(TensorDataset(x[:320], y[:320]), args.batch_size, shuffle=True)
    model, stopping = Forecast(6, args.width), EarlyStopping(patience=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for epoch in range(args.epochs):
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch)[0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error, effort = validation_error(model, x[320:], y[320:])
        schedule.step(error)
        print(f"epoch {epoch} error {error:.4f} effort {effort:.2f} best {stopping.best:.4f}", flush=True)
        if stopping.should_stop(error, model):
            break
    model.load_state_dict(stopping.weights)


if __name__ == "__main__":
    main()
