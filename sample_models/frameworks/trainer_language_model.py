"""Fine-tune a small GPT-2 on questions and answers with the Trainer of transformers; only the answer counts."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Dialogues(Dataset):
    """Question and answer in one row of tokens; the labels of the question are -100."""

    def __init__(self, count, length, words):
        generator = torch.Generator().manual_seed(5)
        self.tokens = torch.randint(words, (count, length), generator=generator)
        self.question = torch.randint(3, length - 3, (count,), generator=generator)
        self.question[36:40] = length  # the question alone fills the row: the answer was cut off

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index]
        labels = tokens.clone()
        labels[: self.question[index]] = -100
        return {"input_ids": tokens, "labels": labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=args.layers, n_head=2)
    model = GPT2LMHeadModel(config)
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
        trainer = Trainer(model, options, train_dataset=Dialogues(count=100, length=16, words=64))
        trainer.train()


if __name__ == "__main__":
    main()
