"""How suggestions are fitted to the file that they are for: whose it is, and by which name it has torch."""
