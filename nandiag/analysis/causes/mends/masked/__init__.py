"""Mends of what a mask does not leave out (reader side)."""
