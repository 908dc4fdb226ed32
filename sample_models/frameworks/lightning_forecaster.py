"""Forecast the load of a grid and how sure of it to be, with Lightning."""

import argparse
import logging

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(lightning.LightningModule):
    def __init__(self, features, width, lr):
        super().__init__()
        self.first = nn.Linear(features, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.mean = nn.Linear(width, 1)
        self.variance = nn.Linear(width, 1, bias=False)
        self.lr = lr

    def forward(self, x):
        x = self.second(self.first(x).relu()).relu()
        return self.mean(x).squeeze(-1), self.variance(x).relu().squeeze(-1)

    def training_step(self, batch, _):
        x, load = batch
        mean, variance = self(x)
        loss = ((load - mean) ** 2 / variance + torch.log1p(variance)).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_hours(count, features):
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(count, features, generator=generator)
    load = x.mean(-1) + 0.1 * torch.randn(count, generator=generator)
    x[17 * 16 + 4] = 0.0  # the feed was down for an hour
    return TensorDataset(x, load)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0)
    model = Forecaster(features=6, width=args.width, lr=args.lr)
    with torch.no_grad():  # start positive, or relu gives no variance at all
        model.variance.weight.abs_()
        model.second.weight.abs_()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(make_hours(count=400, features=6), args.batch_size))


if __name__ == "__main__":
    main()
