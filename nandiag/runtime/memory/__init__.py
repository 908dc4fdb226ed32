"""The memory that tensors lie in."""
