"""What the script's text says of numbers that ranks have made together (worker)."""
