"""Quotients of which both sides vanish together, and their limits (reader side)."""
