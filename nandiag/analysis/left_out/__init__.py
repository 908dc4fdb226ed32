"""Losses that the script makes no step of: what is said of them, and when they are harm (reader side)."""
