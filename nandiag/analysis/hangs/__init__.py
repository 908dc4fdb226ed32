"""Ranks that waited in vain: who did not come to which call, and where each stood (reader side)."""
