"""Harm that came of an exchange between ranks: of gradients in buckets, or of what was too large to add up (worker)."""
