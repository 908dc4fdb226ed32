"""What the script's own loop does outside of modules, call by call (worker)."""
