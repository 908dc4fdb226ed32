"""A drill for the on-call: train under DDP while one word of a weight of one worker changes in memory, once."""

import argparse
import ctypes
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class WornMemory:
    """Memory that, after the ``when``-th update, reads the exponent of one word as all ones."""

    def __init__(self, weight, when):
        self.weight, self.updates, self.when = weight, 0, when

    def after_update(self, optimizer, args, kwargs):
        del optimizer, args, kwargs
        self.updates += 1
        if self.updates == self.when:
            word = ctypes.c_uint32.from_address(self.weight.data_ptr() + 4 * (self.weight.numel() // 3))
            word.value |= 0x7F800000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(640, 8, generator=generator)
    dataset = TensorDataset(x, x[:, :3].prod(1))
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset))
    network = nn.Sequential(nn.Linear(8, args.width), nn.SiLU(), nn.Linear(args.width, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if dist.get_rank() == 1:
        optimizer.register_step_post_hook(WornMemory(network[0].weight, when=8).after_update)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
