"""What numpy says of its own arithmetic, which no mode of torch's sees, and numbers read off tensors (worker)."""
