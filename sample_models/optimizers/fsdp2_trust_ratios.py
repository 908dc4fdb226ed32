"""Tell the topic and, where it has one, the price of an advert; sharded with FSDP2, layer-wise rates as in LARS."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class LayerWise(torch.optim.Optimizer):
    """Momentum, and a rate for each weight by the length of the weight and of its update."""

    def __init__(self, params, lr=1e-3, momentum=0.0, decay=1e-4):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                self.move(weight, group)

    def move(self, weight, group):
        state = self.state[weight]
        if "buffer" not in state:
            state["buffer"] = torch.zeros_like(weight)
        direction = weight.grad if weight.ndim == 1 else weight.grad + group["decay"] * weight
        state["buffer"].mul_(group["momentum"]).add_(direction)
        trust = weight.norm() / state["buffer"].norm()
        weight.sub_(group["lr"] * trust * state["buffer"])


class Adverts(nn.Module):
    def __init__(self, features, width, topics):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.topic, self.price = nn.Linear(width, topics), nn.Linear(width, 1)

    def forward(self, advert, priced):
        hidden = self.body(advert)
        return self.topic(hidden), self.price(hidden[priced]).sum(-1)


def make_adverts(count, features, topics):
    generator = torch.Generator().manual_seed(3)
    advert, prices = torch.randn(count, features, generator=generator), torch.rand(count, generator=generator) + 0.5
    prices[320:384] = 0.0  # a column of lost-and-found: nobody asks for money
    return TensorDataset(advert, torch.randint(0, topics, (count,), generator=generator), prices)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = Adverts(features=12, width=args.width, topics=5)
    for part in (model.body, model.topic, model.price):
        fully_shard(part)
    fully_shard(model)
    optimizer = LayerWise(model.parameters(), lr=args.lr)
    adverts = make_adverts(640, 12, 5)
    loader = DataLoader(adverts, args.batch_size, sampler=DistributedSampler(adverts, shuffle=False))
    for step, (advert, topic, price) in enumerate(loader):
        priced = price > 0
        scores, prices = model(advert, priced)
        loss = nn.functional.cross_entropy(scores, topic)
        loss = loss + nn.functional.l1_loss(prices, price[priced], reduction="sum") / priced.sum().clamp_min(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
