"""What the ranks do together: agree at a step's border, and watch over a replay that all of them make (worker)."""
