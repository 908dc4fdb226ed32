"""Parts of a report as lines of plain text, the same on a terminal and in markdown (launcher and reader)."""
