"""What a replay makes of the exchanges between ranks: which each one is, and the hooks that make them (worker)."""
