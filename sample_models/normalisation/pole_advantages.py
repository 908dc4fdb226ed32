"""Balance a pole by policy gradients: one update an episode, with the returns of the episode standardised."""

import argparse

import torch
from torch import nn


class Pole:
    """A pole on a cart in one dimension: it falls when its angle is too large."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, tilt):
        self.state = torch.tensor([tilt, 0.0, 0.0, 0.0])
        return self.state

    def act(self, push):
        angle, speed, place, drift = self.state.tolist()
        speed += 0.1 * angle + 0.05 * (push - 0.5) + 0.01 * float(torch.randn((), generator=self.generator))
        drift += 0.05 * (push - 0.5)
        self.state = torch.tensor([angle + speed, speed, place + drift, drift])
        return self.state, abs(angle + speed) > 0.4


def play(policy, pole, tilt, longest):
    """Return the log probabilities of the actions of one episode; each step is worth 1."""
    state, chosen = pole.reset(tilt), []
    for _ in range(longest):
        law = torch.distributions.Bernoulli(logits=policy(state).squeeze(-1))
        action = law.sample()
        chosen.append(law.log_prob(action))
        state, fallen = pole.act(float(action))
        if fallen:
            break
    return torch.stack(chosen)


def advantages(steps, discount):
    returns = torch.tensor([(1 - discount ** (steps - index)) / (1 - discount) for index in range(steps)])
    return (returns - returns.mean()) / (returns.std() + 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--discount", type=float, default=0.97)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    pole = Pole(seed=1)
    tilts = 0.05 * torch.randn(args.episodes, generator=torch.Generator().manual_seed(2))
    tilts[23] = 0.39
    for episode, tilt in enumerate(tilts.tolist()):
        chosen = play(policy, pole, tilt, longest=60)
        loss = -(chosen * advantages(len(chosen), args.discount)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 5 == 0:
            print(f"episode {episode} steps {len(chosen)}", flush=True)


if __name__ == "__main__":
    main()
