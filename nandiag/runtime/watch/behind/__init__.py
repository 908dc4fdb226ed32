"""Updates that are made one behind another, of the same backward (worker)."""
