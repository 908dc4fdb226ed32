"""Every file of a log folder: where it lies, how it is written, how it is read. Standard library only."""
