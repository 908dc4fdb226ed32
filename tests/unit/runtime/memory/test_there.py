"""Memory that was let go of is never read: each look is given it in a process of its own, which a read would end."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nandiag.runtime.guard import Refused
from nandiag.runtime.memory.there import all_there, demand, is_there


def freed(tensor, left=0):
    tensor.untyped_storage().resize_(left)
    return tensor


def test_what_is_whole_is_there():
    base = torch.arange(24.0).reshape(4, 6)
    for one in (base, base.t(), base[1:, 2:], base[2], torch.ones(1).expand(1000), torch.ones(()), base.int()):
        assert is_there(one)
    assert is_there(torch.eye(3).to_sparse())
    assert is_there(freed(torch.ones(0)))


@pytest.mark.parametrize("left", [0, 4, 399])
def test_what_was_shrunk_is_not(left):
    assert not is_there(freed(torch.ones(100), left))
    base = torch.ones(10, 10)
    view = base[1:, 2:]
    freed(base, left)
    assert not is_there(view)


def test_what_still_lies_in_what_is_left_is_there():
    base = torch.ones(100)
    head, tail = base[:10], base[90:]
    freed(base, 40)
    assert is_there(head)
    assert not is_there(tail)
    assert not all_there([head, tail])
    with pytest.raises(Refused, match="let go of"):
        demand([head, tail])


def test_what_has_no_values_is_not():
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert not is_there(torch.ones(3, device="meta"))
    with FakeTensorMode():
        assert not is_there(torch.ones(3))
    assert not is_there(torch._efficientzerotensor(3))


LOOKS = Path(__file__).with_name("looks_at_freed.py")


def test_no_look_reads_what_is_not_there():
    done = subprocess.run([sys.executable, str(LOOKS)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-2000:])
    assert done.stdout.endswith("through\n")


def test_a_tensor_within_a_transform_cannot_be_read():
    seen = []

    def f(x):
        seen.append(is_there(x))
        return x * 2

    torch.vmap(f)(torch.ones(3, 2))
    torch.func.jacrev(f)(torch.ones(3))
    assert seen[0] is False
    assert is_there(torch.ones(3, 2))
