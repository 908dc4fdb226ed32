"""What NCCL chose and what else its logs say, as lines of text for every renderer (launcher and reader)."""

from __future__ import annotations

from nandiag.analysis.nccl.summary import Link, Logs, sentence
from nandiag.events import words

MOST_PORTS = 4


def lines(logs: Logs | None) -> list[str]:
    """Return one line on the choices NCCL made, then one each on troubles that are no warnings (those are findings)."""
    if logs is None:
        return []
    said = [sentence(one) + (f" {one.mend}" if one.mend else "") for one in logs.troubles if one.severity == "info"]
    left = [f"{words.count(logs.left_out, 'more trouble')} left out."] if logs.left_out else []
    return [*choices(logs), *said, *left]


def choices(logs: Logs | None) -> list[str]:
    """Return one line on version, transports, network and ports; none where the logs hold none of these."""
    if logs is None:
        return []
    parts = [f"version {', '.join(logs.versions)}"] if logs.versions else []
    parts += [_link(link) for link in logs.links]
    parts += [f"network {', '.join(logs.networks)}"] if logs.networks else []
    parts += [f"ports {words.few(logs.adapters, most=MOST_PORTS)}"] if logs.adapters else []
    parts += ["NVLink multicast (NVLS)"] if logs.nvls else []
    return ["; ".join(parts) + "."] if parts else []


def _link(link: Link) -> str:
    return f"{link.transport} ({link.kind}) on {words.count(link.links, 'link')}"
