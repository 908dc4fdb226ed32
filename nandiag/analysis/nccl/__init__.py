"""NCCL's own logs: bytes of log files in, what they say in plain words out. No files, no clock (pure)."""

from nandiag.analysis.nccl.read import Reading
from nandiag.analysis.nccl.summary import Logs, summary_of

__all__ = ["Logs", "Reading", "summary_of"]
