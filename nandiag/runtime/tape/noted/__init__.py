"""Calls of a short step, kept as they were given until it is known whether anybody asks for them."""
