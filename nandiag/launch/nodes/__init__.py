"""Several launchers of one run, a node each: one folder where they share a disk, one report for all (launcher)."""
