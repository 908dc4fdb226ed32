"""The Python objects that ranks hand each other, and the bad numbers in them (worker)."""
