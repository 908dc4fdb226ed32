"""Read lines of text from their images: a convolution down the width and a CTC loss; trained by a small class."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    """Images of lines, all scaled to one width, with the characters on them."""

    def __init__(self, lines, letters, width, seed):
        generator = torch.Generator().manual_seed(seed)
        length = torch.poisson(torch.full((lines,), 6.5), generator=generator).clamp(2).int()
        self.text = [torch.randint(1, letters, (int(n),), generator=generator) for n in length]
        self.image = torch.rand(lines, 8, width, generator=generator)

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        return self.image[index], self.text[index]


def collate(rows):
    image, text = zip(*rows, strict=True)
    return torch.stack(image), torch.cat(text), torch.tensor([len(line) for line in text])


class Reader(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv1d(8, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, stride=2, padding=1)
        )
        self.letters = nn.Linear(width, letters)

    def forward(self, image):
        return self.letters(self.look(image).permute(2, 0, 1)).log_softmax(dim=-1)


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.criterion = nn.CTCLoss(blank=0)
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=lr)

    def loss_of(self, batch):
        image, text, lengths = batch
        scores = self.model(image)
        frames = torch.full((scores.shape[1],), scores.shape[0])
        return self.criterion(scores, text, frames, lengths)

    def fit(self, loader):
        for step, batch in enumerate(loader):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss_of(batch)
            loss.backward()
            self.optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Lines(lines=480, letters=20, width=64, seed=10), args.batch_size, collate_fn=collate)
    Trainer(Reader(letters=20, width=args.width), args.lr).fit(loader)


if __name__ == "__main__":
    main()
