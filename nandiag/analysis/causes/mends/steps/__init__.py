"""How far a step goes: learning rates, step sizes of the script's own, and what they can have led to (reader side)."""
