"""What the text of a script makes depend on an answer (worker)."""
