"""A drill for the on-call: train under DDP while the memory of one worker loses a few bits, once."""

import argparse
import ctypes
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Memory:
    """Memory in which, at the ``when``-th visit, exponent bits of a word stick; it counts in C, as devices do."""

    def __init__(self, when):
        self.visits, self.when = ctypes.c_long(0), when

    def visit(self, module, args, tensor):
        del module, args
        self.visits.value += 1
        if self.visits.value == self.when:
            word = ctypes.c_uint32.from_address(tensor.data_ptr() + 4 * (tensor.numel() // 2))
            word.value |= 0x7F800000
        return tensor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(640, 8, generator=generator)
    dataset = TensorDataset(x, x.prod(1))
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(8, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    if rank == 1:
        model[1].register_forward_hook(Memory(when=10).visit)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it
