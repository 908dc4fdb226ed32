# nproc: 1
# expect: rank=0 step=7
# phase: forward
"""GRU value model; the reward scale is a running std that is zero for a constant episode."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Value(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 20, batch_first=True)
        self.v = nn.Linear(20, 1)

    def forward(self, obs):
        h, _ = self.gru(obs)
        return self.v(h).squeeze(-1)


def normalise(returns):
    return (returns - returns.mean(1, keepdim=True)) / returns.std(1, keepdim=True)  # ORIGIN


def discounted(rewards, gamma=0.0):
    out, running = [], torch.zeros(rewards.shape[0], device=rewards.device)
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + gamma * running
        out.append(running)
    return torch.stack(out[::-1], 1)


def main():
    torch.manual_seed(1)
    model = Value().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    for episode in range(12):
        obs = torch.randn(4, 10, 6, device=device)
        rewards = torch.rand(4, 10)
        if episode == 7:
            rewards[1] = 1.0
        target = normalise(discounted(rewards.to(device)))
        loss = F.smooth_l1_loss(model(obs), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    bits(model)


main()
