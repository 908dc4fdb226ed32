"""A bad batch is asked of its dataset again: of a map here, of a stream in a process of its own."""
