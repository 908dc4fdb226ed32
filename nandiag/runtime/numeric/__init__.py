"""What numpy says of its own arithmetic, which no mode of torch's sees (worker)."""
