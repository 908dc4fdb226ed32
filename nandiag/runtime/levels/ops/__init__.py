"""``--level op``: the live tracer, what it has seen, and how that is told."""
