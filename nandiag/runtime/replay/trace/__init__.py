"""The op-level tracer of a replay: what each op makes of what it is given, and where it runs (worker)."""
