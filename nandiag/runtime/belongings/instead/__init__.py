"""What stands, while a step is run again, where the script has what could not be put back (worker)."""
