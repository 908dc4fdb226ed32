"""The block for a bug report: versions, variables and what is not in order, without names of hosts, users and nets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nandiag.analysis.doctor.check import OK, Doctor

_OURS = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DIST", "GLOO_", "NANDIAG_")
_OURS_TOO = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH", re.IGNORECASE)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}\b")
_PATH = re.compile(r"(?<![\w.])(?:/[\w.@+-]+){2,}")
_USER = re.compile(r"\b[\w.-]+@[\w.-]+\b")


def lines(doctor: Doctor, environ: Mapping[str, str]) -> list[str]:
    """Return the block."""
    # The whole name first, then its part before the domain.
    names = sorted(
        {part for host in doctor.hosts for part in (host, host.split(".")[0]) if part}, key=len, reverse=True
    )
    facts = [f"{name}: {text}" for name, text in doctor.facts.items()]
    troubles = [f"{check.state}: {check.name}: {check.seen}" for check in doctor.checks if check.state != OK]
    variables = [f"{name}={value}" for name, value in sorted(environ.items()) if _told(name)]
    return [masked(line, names) for line in [*facts, *variables, *troubles]]


def _told(name: str) -> bool:
    return (name.startswith(_OURS) or name in _OURS_TOO) and not _SECRET.search(name)


def masked(text: str, hosts: Iterable[str]) -> str:
    """Return ``text`` without paths, addresses, user names and the names of ``hosts``."""
    for host in hosts:
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "HOST", text)
    text = _USER.sub("USER", text)
    text = _PATH.sub(_shortened, text)
    return _ADDRESS.sub("ADDRESS", text)


def _shortened(found: re.Match[str]) -> str:
    """Return the last part of a path; places that are the same on every machine stay whole."""
    path = found[0]
    return path if path.startswith(("/dev/", "/proc/")) else ".../" + path.rsplit("/", 1)[1]
