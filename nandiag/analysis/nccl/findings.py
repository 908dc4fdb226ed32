"""What NCCL's logs add to the findings of a report (launcher and reader; pure)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.nccl.summary import CODES, TIMED_OUT, Logs, NcclTrouble, sentence
from nandiag.analysis.report import Finding, Suggestion
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


_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"

EXPLAIN = (
    Explanation(
        TIMED_OUT,
        "A collective did not end within its time-out on these ranks, as torch's watchdog saw. Some rank did not "
        "call it, "
        "called another one, or died; the ranks that are named here waited.",
        fix=(
            Suggestion("Look at the ranks that are not named: what they raised, or where they stood."),
            Suggestion(
                "Where all ranks only are slow (a checkpoint, a first batch), raise timeout= of init_process_group."
            ),
        ),
        pages=(_GUIDE + "troubleshooting.html",),
        kind="finding",
    ),
    *(
        Explanation(
            f"nccl_result_{code}",
            f"A call inside NCCL gave result {code}, without a warning that says why: {what}.",
            fix=(Suggestion("Run with NCCL_DEBUG=INFO (`nandiag run --nccl full`), and look for the first warning."),),
            pages=(_GUIDE + "api/types.html",),
            kind="finding",
        )
        for code, (what, _) in CODES.items()
    ),
)
