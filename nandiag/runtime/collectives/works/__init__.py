"""The works of calls that only began: whether the script has waited for them (worker)."""
