"""Which collectives a rank called, in what order and from where, and how that is told when a run hangs (worker)."""
