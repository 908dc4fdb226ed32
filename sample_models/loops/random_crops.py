"""Learn to tell textures apart from random crops; the crops come from a generator of the script's own."""

import torch
from torch import nn

SIZE = 12


class Crops:
    """Draws the corner and the size of each crop; now and then a crop is empty."""

    def __init__(self, seed):
        self.state = seed

    def draw(self, most):
        self.state = (self.state * 1103515245 + 12345) % (1 << 31)
        return (self.state >> 16) % most


class TextureNet(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.features = nn.Conv2d(1, 8, 3, padding=1)
        self.classify = nn.Linear(8, 3)

    def pooled(self, maps):
        size = self.draw(SIZE)
        return maps[:, :, :size, :size].mean(dim=(2, 3))

    def forward(self, images):
        return self.classify(self.pooled(torch.relu(self.features(images))))


def batch(generator):
    labels = torch.randint(3, (16,), generator=generator)
    grid = torch.arange(SIZE).float()
    wave = torch.sin(grid[None, :] * (labels[:, None] + 1)).unsqueeze(1)
    return (wave.unsqueeze(2) + 0.1 * torch.randn(16, 1, SIZE, SIZE, generator=generator)), labels


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = TextureNet(Crops(seed=8).draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(48):
        images, labels = batch(generator)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
