"""Additive attention masks for decoders that read several documents in one row."""

import torch


def hide(hidden, dtype):
    return hidden.to(dtype) * torch.finfo(dtype).min


def packed_mask(documents, padding, dtype):
    """Hide the future, other documents and padding; ``documents`` numbers the documents of each row."""
    length = documents.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)
    other = documents[:, :, None] != documents[:, None, :]
    other = other | (documents == padding)[:, None, :]
    absent = (documents == padding)[:, None, :]
    return (hide(future, dtype) + hide(other, dtype) + hide(absent, dtype)).unsqueeze(1)
