"""Which dataset and which sample are told of a bad batch."""

import torch
from torch.utils.data import Subset, TensorDataset

from nandiag.runtime.evidence.data.samples.refetch import beneath


def test_a_part_of_a_part_is_told_by_the_dataset_itself():
    whole = TensorDataset(torch.arange(9))
    half = Subset(whole, [8, 6, 4, 2])
    assert beneath(Subset(half, [3, 1]), 1) == (whole, 6)
    assert beneath(Subset(whole, torch.tensor([5, 7]).numpy()), 1) == (whole, 7)


def test_a_whole_dataset_and_an_index_that_is_not_known_stay():
    whole = TensorDataset(torch.arange(9))
    part = Subset(whole, [1])
    assert beneath(whole, 3) == (whole, 3)
    assert beneath(part, None) == (part, None)
    assert beneath(part, 7) == (part, 7)
