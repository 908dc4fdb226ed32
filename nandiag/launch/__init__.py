"""The parent of the workers: reads the words, plans, runs torchrun or a plain command, and watches (launcher)."""
