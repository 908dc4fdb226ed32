"""A tensor of which this rank holds nothing is looked at as any other: an empty shard of one number, or a result."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from nandiag.runtime.memory.known.masks import Masks
from nandiag.runtime.memory.lost.integers import fits


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_empty_shard_of_one_number_is_no_infinity(alone):
    mesh = init_device_mesh("cpu", (1,))
    shard = DTensor.from_local(torch.zeros(0), mesh, [Shard(0)], run_check=False, shape=(1,), stride=(1,))
    held = Masks()
    held.laid(torch.zeros(4), shard)
    assert not held.begin(torch.full((4,), math.inf))


def test_an_empty_result_fits_into_any_integers():
    assert fits(torch.zeros(0), torch.int32)
