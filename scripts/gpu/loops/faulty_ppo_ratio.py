# nproc: 1
# expect: rank=0 step=9
# phase: loss
"""PPO: exp of the difference of log-probabilities; an action that the old policy all but excluded."""

import torch
from torch import nn
from torch.nn import functional as F
from digest import bits

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.pi = nn.Linear(32, 3)
        self.v = nn.Linear(32, 1)

    def forward(self, s):
        h = self.body(s)
        return torch.distributions.Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


def surrogate(new, old, adv, eps=0.2):
    ratio = torch.exp(new - old)  # ORIGIN
    return -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).mean()


def main():
    torch.manual_seed(0)
    net = Policy().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, eps=1e-5)
    step = 0
    for rollout in range(4):
        with torch.inference_mode():
            s = torch.randn(16, 4, device=device)
            dist, value = net(s)
            a = dist.sample()
            old = dist.log_prob(a)
            ret = torch.randn(16, device=device)
        s, a, old, adv = s.clone(), a.clone(), old.clone(), (ret - value).clone()
        if rollout == 3:
            old[2] = -120.0
            adv[2] = -1.0
        for epoch in range(3):
            dist, v = net(s)
            loss = surrogate(dist.log_prob(a), old, adv) + 0.5 * v.pow(2).mean() - 0.01 * dist.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            step += 1
    bits(net)


main()
