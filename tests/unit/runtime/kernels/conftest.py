"""Kernels that stand in for what only a device has."""

import pytest
from torch.library import Library


@pytest.fixture
def stand_in():
    """Puts functions in the place of torch's own kernels for the CPU: ``stand_in("_ctc_loss.Tensor", kernel)``."""
    library = Library("aten", "IMPL")
    yield lambda name, kernel: library.impl(name, kernel, "CPU", with_keyset=False)
    library._destroy()
