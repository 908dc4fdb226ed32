"""A replay in which nothing broke: what it may have missed, and what shows on other terms (worker)."""
