"""The arguments of taped calls, as they are kept."""
