"""What kernels do that their op's name and schema do not tell of (worker)."""
