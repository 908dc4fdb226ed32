"""Classify points on two moons with Lightning, with validation, clipping and early stopping."""

import argparse
import logging

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Classifier(lightning.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
        self.lr = lr

    def training_step(self, batch, _):
        x, label = batch
        return nn.functional.cross_entropy(self.net(x), label)

    def validation_step(self, batch, _):
        x, label = batch
        guess = self.net(x).argmax(-1)
        rare = label == 2
        self.log("loss", nn.functional.cross_entropy(self.net(x), label))
        self.log("accuracy_of_rare", (guess[rare] == label[rare]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def make_moons(count):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(2, (count,), generator=generator)
    angle = torch.rand(count, generator=generator) * torch.pi + label * torch.pi
    x = torch.stack([angle.cos() + label, angle.sin() + label / 2], dim=1)
    return TensorDataset(x + 0.1 * torch.randn(count, 2, generator=generator), label)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0)
    train, valid = random_split(make_moons(640), [512, 128])
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[EarlyStopping("loss", patience=2)],
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = DataLoader(train, args.batch_size, shuffle=True), DataLoader(valid, args.batch_size)
    trainer.fit(Classifier(width=16, lr=args.lr), *loaders)


if __name__ == "__main__":
    main()
