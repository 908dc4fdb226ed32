"""What a call of a module depends on besides its arguments, what it changes, and what it gives out."""
