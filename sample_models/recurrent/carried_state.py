"""Character model by truncated backpropagation through time: the state is carried from chunk to chunk of the text."""

import argparse

import torch
from torch import nn


class Memory(nn.Module):
    """A recurrent layer whose cells grow with what they are shown; only their proportions are read."""

    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x, state):
        return state * (1 + torch.sigmoid(self.gate(x)))


class CharacterModel(nn.Module):
    def __init__(self, letters, width):
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.memory = Memory(width)
        self.head = nn.Linear(width, letters)

    def forward(self, text, state):
        outputs = []
        for letter in text.unbind(0):
            state = self.memory(self.embedding(letter), state)
            outputs.append(self.head(state / state.amax(-1, keepdim=True)))
        return torch.stack(outputs), state


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--books", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(3)
    text = torch.randint(30, (16 * 40 + 1, args.books), generator=generator)
    model = CharacterModel(letters=30, width=args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    state = torch.ones(args.books, args.width)

    for step, start in enumerate(range(0, len(text) - 1, args.chunk)):
        piece = text[start : start + args.chunk + 1]
        scores, state = model(piece[:-1], state)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), piece[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = state.detach()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
