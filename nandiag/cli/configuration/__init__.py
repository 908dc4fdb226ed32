"""Settings as the command line meets them: read from all places that can give them, and listed with those places."""

from nandiag.cli.configuration.listing import listed
from nandiag.cli.configuration.places import DEFAULT, Configured, load

__all__ = ["DEFAULT", "Configured", "listed", "load"]
