"""The command line: thin, one file a verb (launcher and reader, never a worker)."""
