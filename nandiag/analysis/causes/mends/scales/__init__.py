"""Scales: one that is given as its logarithm, and what a loss is multiplied by (reader side)."""
