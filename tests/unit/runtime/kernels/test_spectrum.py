"""Which matrix of a batch the eigenvalues are told of, where the logarithm of a determinant is NaN."""

import torch

from nandiag.runtime.kernels.determinants import _spectrum


def of(*values):
    turned, _ = torch.linalg.qr(torch.arange(16.0, dtype=torch.float64).reshape(4, 4).sin() + torch.eye(4))
    return turned @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turned.mT


def test_the_matrix_is_told_whose_determinant_is_below_zero():
    """Of two eigenvalues below 0 the product is above it, however far below they are."""
    found = _spectrum(torch.stack([of(1.0, 2.0, 3.0, 4.0), of(-50.0, -60.0, 1.0, 1.0), of(1.0, 1.0, 1.0, -0.2)]))
    assert abs(found["least_eigenvalue"] + 0.2) < 1e-6
    assert abs(found["largest_eigenvalue"] - 1.0) < 1e-6
