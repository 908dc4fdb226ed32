"""Logarithms of what is made of exponentials, taken where neither leaves the dtype (reader side)."""
