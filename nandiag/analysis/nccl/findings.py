"""What NCCL's logs add to the findings of a report (launcher and reader; pure)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.nccl.summary import Logs, NcclTrouble, sentence
from nandiag.analysis.report import Finding
from nandiag.events import words


def findings_of(logs: Logs | None) -> Iterable[Finding]:
    """Yield the troubles of the logs, then what the choice of transports says."""
    if logs is None:
        return
    for trouble in logs.troubles:
        yield Finding(trouble.slug, _severity(trouble, logs), _text(trouble), trouble.ranks)
    yield from _versions(logs)
    yield from _transports(logs)


def _severity(trouble: NcclTrouble, logs: Logs) -> str:
    """Return ``info`` for the echo of another's end where that end has a warning of its own."""
    first = any(one.severity == "warning" and not one.follows for one in logs.troubles)
    return "info" if trouble.follows and first else trouble.severity


def _text(trouble: NcclTrouble) -> str:
    return f"NCCL, {sentence(trouble)}" + (f" {trouble.mend}" if trouble.mend else "")


def _versions(logs: Logs) -> Iterable[Finding]:
    if len({version.split("+")[0] for version in logs.versions}) > 1:
        yield Finding(
            "nccl_versions_differ",
            "warning",
            f"The ranks run different versions of NCCL: {', '.join(logs.versions)}. Install the same on all nodes.",
        )


def _transports(logs: Logs) -> Iterable[Finding]:
    sockets = sum(link.links for link in logs.links if link.transport.startswith("NET/Socket"))
    if sockets and logs.adapters:
        ports = words.few(logs.adapters, most=4)
        yield Finding(
            "nccl_socket_despite_ib",
            "warning",
            f"NCCL talks over TCP sockets on {words.count(sockets, 'link')} although it found {ports}. Look for "
            "NCCL_IB_DISABLE, NCCL_IB_HCA or NCCL_NET that rule them out on some node.",
        )
    elif sockets and len(logs.hosts) > 1:
        yield Finding(
            "nccl_socket",
            "info",
            f"NCCL talks over TCP sockets between {words.count(len(logs.hosts), 'host')}: no InfiniBand or RoCE port "
            f"was used.",
        )
    plain = sum(
        link.links for link in logs.links if link.transport.startswith("NET/IB") and "GDRDMA" not in link.transport
    )
    if plain:
        yield Finding(
            "nccl_no_gpudirect",
            "info",
            f"{words.count(plain, 'link')} over InfiniBand go through host memory (no GPUDirect RDMA): load "
            f"nvidia-peermem, "
            "or see NCCL_NET_GDR_LEVEL, for more bandwidth.",
        )
