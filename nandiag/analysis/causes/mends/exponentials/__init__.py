"""Exponentials where they leave the dtype, or vanish in it (reader side)."""
