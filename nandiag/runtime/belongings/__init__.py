"""What a script's own code holds and may change when it is run again (worker)."""
