"""The walk from the roots of a backward call to its leaves."""

import pytest
import torch

from nandiag.runtime.leaves import leaves_of


@pytest.mark.parametrize("count", [1, 2, 10, 50])
def test_every_leaf_is_found_however_short_python_s_side_of_a_node_lives(count):
    leaves = [torch.ones(3, requires_grad=True) for _ in range(count)]
    total = sum(((leaf * 2).exp().sum() * 3 for leaf in leaves), torch.zeros(()))
    assert set(map(id, leaves_of([total]))) == set(map(id, leaves))
    assert set(map(id, leaves_of([total * 2, total.exp()]))) == set(map(id, leaves))


def test_what_needs_no_gradient_has_no_leaves():
    assert leaves_of([torch.ones(3), torch.ones(3, requires_grad=True).detach() * 2]) == []
