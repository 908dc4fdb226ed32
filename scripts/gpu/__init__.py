"""What scripts/gpu_check runs: loops, what is compared of them, and step times."""
