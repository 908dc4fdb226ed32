"""From what a replay showed to the event that tells it: the way back, names, places, facts."""
