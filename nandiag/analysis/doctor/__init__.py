"""From facts on an installation, a machine and a self-test to checks, each with what to do (launcher; pure)."""

from nandiag.analysis.doctor.check import OK, SKIPPED, STATES, WARNING, WRONG, Check, Doctor

__all__ = ["OK", "SKIPPED", "STATES", "WARNING", "WRONG", "Check", "Doctor"]
