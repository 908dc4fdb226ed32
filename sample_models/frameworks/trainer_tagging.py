"""Tag the words of reports with the Trainer of transformers and a small model of our own."""

import argparse
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Reports(Dataset):
    """Words, their tags, and which of them an annotator has looked at."""

    def __init__(self, count, length, words, tags):
        generator = torch.Generator().manual_seed(3)
        self.words = torch.randint(words, (count, length), generator=generator)
        self.tags = self.words % tags
        self.seen = torch.rand(count, length, generator=generator) < 0.7
        self.seen[88:96] = False  # a folder that was filed before anybody had read it

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"words": self.words[index], "tags": self.tags[index], "seen": self.seen[index]}


class Tagger(nn.Module):
    def __init__(self, words, width, tags):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.context = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, tags)

    def forward(self, words, tags, seen):
        logits = self.head(self.context(self.embedding(words))[0])
        each = nn.functional.cross_entropy(logits.transpose(1, 2), tags, reduction="none")
        loss = (each * seen).sum() / seen.sum()
        return {"loss": loss, "logits": logits}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    model = Tagger(words=60, width=args.width, tags=5)
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            num_train_epochs=1,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        )
        Trainer(model, options, train_dataset=Reports(count=200, length=12, words=60, tags=5)).train()


if __name__ == "__main__":
    main()
