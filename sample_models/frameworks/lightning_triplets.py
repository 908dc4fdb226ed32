"""Learn to recognise leaves from triplets (a leaf, another picture of it, another leaf) with Lightning."""

import argparse
import logging

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def distance(a, b):
    return (a - b).square().sum(-1).sqrt()


class Leaves(lightning.LightningModule):
    def __init__(self, features, width, lr):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, 8))
        self.lr = lr

    def forward(self, x):
        return nn.functional.normalize(self.body(x), dim=-1)

    def training_step(self, batch, _):
        anchor, same, other = (self(x) for x in batch)
        loss = (distance(anchor, same) - distance(anchor, other) + 0.2).clamp(min=0).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Pictures(Dataset):
    """Two pictures of each leaf; of one leaf there is only one, taken twice."""

    def __init__(self, leaves, features):
        generator = torch.Generator().manual_seed(8)
        leaf = torch.randn(leaves, features, generator=generator)
        self.first = leaf + 0.3 * torch.randn(leaves, features, generator=generator)
        self.second = leaf + 0.3 * torch.randn(leaves, features, generator=generator)
        self.second[11 * 16 + 9] = self.first[11 * 16 + 9]

    def __len__(self):
        return len(self.first)

    def __getitem__(self, index):
        return self.first[index], self.second[index], self.first[index - 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0)
    model = Leaves(features=12, width=args.width, lr=args.lr)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Pictures(leaves=400, features=12), args.batch_size))


if __name__ == "__main__":
    main()
