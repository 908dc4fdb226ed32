"""Short steps that are like those before them: what is done in each of them, in straight lines (worker)."""
