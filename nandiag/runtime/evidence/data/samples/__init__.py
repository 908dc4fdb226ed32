"""Of which samples of a dataset a batch was made, and the line that made a bad one (worker)."""
