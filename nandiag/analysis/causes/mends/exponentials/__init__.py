"""Exponentials, and logarithms of what is made of them, where they leave the dtype (reader side)."""
