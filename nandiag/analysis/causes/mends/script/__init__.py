"""The script's own text: parsed, understood, and written again with one part changed (reader side)."""
