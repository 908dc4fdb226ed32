"""Divisors that are zero: what they are made of, and what keeps them above it (reader side)."""
