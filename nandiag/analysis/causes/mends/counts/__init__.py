"""Counts that something is divided by, which may be 0 (reader side)."""
