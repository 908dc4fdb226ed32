"""A report as text for terminals, machines and step summaries; the Report alone is read (launcher and reader)."""
