"""Which way the script goes once it was told of a bad number: on with its loop, or out of it (worker)."""
