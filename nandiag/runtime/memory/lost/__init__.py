"""Digits that were lost on the way to an op that broke by it: by integers that wrapped, and squares (worker)."""
