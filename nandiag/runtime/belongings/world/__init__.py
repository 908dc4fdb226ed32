"""The world outside of the process, and the files that lead there, while a step is run again (worker)."""
