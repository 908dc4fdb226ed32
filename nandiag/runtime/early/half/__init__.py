"""float16 in use: how near its activations are to the end of its range (worker)."""
