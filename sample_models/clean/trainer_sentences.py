"""Train a small BERT on two classes of sentences with the Trainer of transformers, warm-up and evaluation included."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    """Padded rows of tokens; the class is whether the first token comes again."""

    def __init__(self, count, length, words, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, words, (count, length), generator=generator)
        size = torch.randint(3, length + 1, (count, 1), generator=generator)
        self.attended = (torch.arange(length) < size).long()
        self.tokens *= self.attended
        self.label = (self.tokens[:, 1:] == self.tokens[:, :1]).any(1).long()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {
            "input_ids": self.tokens[index],
            "attention_mask": self.attended[index],
            "labels": self.label[index],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            num_train_epochs=1,
            gradient_accumulation_steps=2,
            warmup_steps=4,
            logging_steps=5,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        data = Sentences(160, 12, 32, seed=1), Sentences(40, 12, 32, seed=2)
        Trainer(BertForSequenceClassification(config), options, train_dataset=data[0], eval_dataset=data[1]).train()


if __name__ == "__main__":
    main()
