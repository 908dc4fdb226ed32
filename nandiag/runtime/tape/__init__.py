"""The tape: what a step did, kept by reference while it runs, so that it can be run again."""
