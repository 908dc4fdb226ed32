"""Steps that are like those before them: what is done in each in straight lines, and what is known of it (worker)."""
