"""Whence values come that are bad before any step is: what the script wrote into memory before it began to train."""
