"""At --level op: what an op made is told as it was made, also where the script has written over it by the harm."""

import pytest
import torch


def zero(made):
    made.zero_()


def zero_first(made):
    made[:3] = 0


def zero_unseen(made):
    made.numpy()[:] = 0


@pytest.mark.parametrize("write", [zero, zero_first, zero_unseen, lambda made: None])
@pytest.mark.parametrize("tracked", [False, True])
def test_what_came_out_is_told_as_it_came_out(work, write, tracked):
    worker = work(level="op")
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(4):
        given = torch.ones(4, requires_grad=tracked)
        if step == 2:
            given.data[2] = -1.0
        made = torch.log(given)
        passed_on = made * 2
        write(made.detach())
        optimizer.zero_grad()
        (weight * passed_on.detach()).sum().backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.site.op, looked.step) == ("aten.log.default", 2), looked
    assert (looked.outputs[0].nan, looked.outputs[0].numel) == (1, 4), looked
    assert looked.inputs[0].min == -1.0


def test_an_op_that_writes_in_place_has_written_over_nothing_of_its_own(work):
    worker = work(level="op")
    weights = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for step in range(3):
        divisors = [torch.ones(4), torch.full((3,), 0.0 if step == 2 else 1.0)]
        made = [torch.zeros(4), torch.zeros(3)]
        torch._foreach_div_(made, divisors)
        optimizer.zero_grad()
        sum((one * other).sum() for one, other in zip(weights, made, strict=True)).backward()
        optimizer.step()
    looked = worker.looked[0]
    assert looked.site.op == "aten._foreach_div_.List", looked
    assert [(one.shape, one.nan) for one in looked.outputs] == [((3,), 3)], looked
