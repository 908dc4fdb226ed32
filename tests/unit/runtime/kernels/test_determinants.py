"""logdet is told by its own name, with the matrix that it was given, and between what its eigenvalues lie."""

import pytest
import torch
from torch import nn

from nandiag.events import Looked


def train(matrix):
    noise = nn.Parameter(torch.tensor(0.3))
    optimizer = torch.optim.SGD([noise], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        K = matrix + (noise if step < 3 else -0.5 * noise / noise.detach()) * torch.eye(3)  # noqa: N806
        loss = torch.logdet(K)
        (loss - 5 * noise).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("matrix", "least"),
    [
        ([[1, 1, 0], [1, 1, 0], [0, 0, 3]], -0.5),
        ([[1, 0.9, 0], [1, 1, 0], [0, 0, 3]], None),
        ([[0.2, 0, 0], [0, 1, 0], [0, 0, 3]], None),
    ],
)
def test_a_determinant_below_zero_is_told_of_its_matrix(work, matrix, least):
    worker = work()
    train(torch.tensor(matrix, dtype=torch.float32))
    (look,) = [one for one in worker.events(Looked) if one.outcome == "found"]
    assert (look.step, look.site.op, look.inputs[0].shape) == (3, "aten.logdet.default", (3, 3))
    assert look.facts.get("least_eigenvalue") == (None if least is None else pytest.approx(least))
