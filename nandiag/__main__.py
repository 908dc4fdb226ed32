"""``python -m nandiag`` is the same as ``nandiag``."""

from nandiag.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
