"""What a step makes that is used in later ones."""
