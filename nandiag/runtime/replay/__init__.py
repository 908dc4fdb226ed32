"""The exact origin: the step is taped by reference, and run again in place under an op-level tracer when it did harm."""
