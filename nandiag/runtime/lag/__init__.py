"""Reading each look a step later than it was made."""
