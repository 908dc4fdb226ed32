"""A call is run again by the ``forward`` that it was made with: trainers put another in its place for one call."""

import pytest
import torch
from torch import nn

BAD = 3


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Step(nn.Module):
    """Trained by a method that is no forward; ``doing`` is set for as long as it runs, by who calls it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.doing = None

    def training_step(self, batch, index):
        x, mask = batch
        if self.doing != "training":
            raise RuntimeError("logged from elsewhere")
        error = (self.layer(x * mask) - x).square() * mask
        return (error.sum(1) / mask.sum(1)).mean() + 0 * index  # of no entry


class WithForward(Step):
    def forward(self, x):
        return self.layer(x)


class Fitting(Step):
    def forward(self, batch, index):
        return self.layer(batch[0]).mean() * index


KINDS = [Step, WithForward, Fitting]


def through_forward(wrapper, module, *args):
    """Call the training step through the wrapper, as Lightning does through DDP."""
    original, module.doing = module.forward, "training"

    def wrapped(*inner):
        module.forward = original
        return module.training_step(*inner)

    module.forward = wrapped
    out = wrapper(*args)
    module.doing = None
    return out


def through_forward_of_its_class(wrapper, module, *args):
    """Do the same, with nothing left in the instance."""
    module.doing = "training"

    def wrapped(*inner):
        del module.forward
        return module.training_step(*inner)

    module.forward = wrapped
    out = wrapper(*args)
    module.doing = None
    return out


def around_it(wrapper, module, *args):
    """Take it away only when the call is over."""
    module.doing, module.forward = "training", module.training_step
    out = wrapper(*args)
    module.doing = None
    del module.forward
    return out


def train(wrapper, module, call, steps=BAD + 2):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(steps):
        x, mask = torch.randn(8, 4), torch.ones(8, 4)
        mask[5] = step != BAD
        optimizer.zero_grad()
        call(wrapper, module, (x, mask), step).backward()
        optimizer.step()


def ends_in_the_step(worker):
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", BAD), looked
    assert looked.site.source.endswith("# of no entry"), looked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [through_forward, through_forward_of_its_class, around_it])
def test_a_method_that_is_called_through_forward_is_run_again(work, kind, call):
    worker, module = work(), kind()
    train(Wrapper(module), module, call)
    ends_in_the_step(worker)


def test_a_root_that_is_redirected_itself_is_run_again_so(work):
    worker, module = work(), Fitting()
    train(module, module, through_forward)
    ends_in_the_step(worker)


def test_a_module_that_was_called_as_it_is_before_is_run_again_by_its_step(work):
    worker, module = work(), Fitting()
    wrapper = Wrapper(module)
    for _ in range(3):
        wrapper((torch.randn(8, 4), None), 1)
    train(wrapper, module, through_forward)
    ends_in_the_step(worker)


@pytest.mark.parametrize("apart", [1, 2])
def test_ddp_is_run_again_without_its_exchange(work, group, apart):
    worker, module = work(), WithForward()
    wrapper = nn.parallel.DistributedDataParallel(module)
    for _ in range(apart - 1):
        wrapper = Wrapper(wrapper)
    train(wrapper, module, through_forward)
    ends_in_the_step(worker)


class Roots(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).mul(x != 0).square().sum(1).sqrt().mean()  # at 0


@pytest.mark.parametrize("apart", [1, 2])
def test_ddp_below_the_root_is_run_again_without_its_exchange(work, group, apart):
    worker, module = work(), Roots()
    wrapper = nn.parallel.DistributedDataParallel(module)
    for _ in range(apart - 1):
        wrapper = Wrapper(wrapper)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(BAD + 1):
        x = torch.randn(8, 4)
        x[5] *= step != BAD
        optimizer.zero_grad()
        wrapper(x).backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step) == ("found", BAD), looked
    assert looked.site.source.endswith("# at 0"), looked


def put_by_hand(wrapper, module, *args):
    """Call it by its class's forward, and have another in the instance only behind that."""
    module.__dict__.pop("forward", None)
    module.doing = "training"
    out = wrapper(*args)
    module.forward = lambda batch, index: batch[0].mean() * index * module.layer.weight.sum()
    return out


class Plain(Step):
    def forward(self, batch, index):
        return self.training_step(batch, index)


def test_a_forward_that_is_put_there_behind_the_call_is_not_run_in_its_place(work):
    worker, module = work(), Plain()
    train(Wrapper(module), module, put_by_hand)
    ends_in_the_step(worker)
