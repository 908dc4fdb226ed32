"""The messages of NCCL in words: what the catalogue of the logs knows, told by slug (reader side)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.nccl.catalogue import ENTRIES
from nandiag.analysis.report import Suggestion

_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_PART = re.compile(r"\{(\w+)\}")


def _known() -> Iterator[Explanation]:
    for slug in dict.fromkeys(entry.slug for entry in ENTRIES):
        own = [entry for entry in ENTRIES if entry.slug == slug]
        texts = dict.fromkeys(_PART.sub(r"<\1>", entry.text) for entry in own)
        mends = dict.fromkeys(_PART.sub(r"<\1>", entry.mend) for entry in own if entry.mend)
        what = f"The logs of NCCL say that {'; or that '.join(texts)}."
        yield Explanation(slug, what, fix=tuple(map(Suggestion, mends)), pages=(_GUIDE,), kind="finding")


def _seen(slug: str, what: str, mend: str) -> Explanation:
    return Explanation(slug, what, fix=(Suggestion(mend),), pages=(_GUIDE,), kind="finding")


EXPLAIN = (
    *_known(),
    _seen(
        "nccl_unknown",
        "The logs of NCCL hold a warning that is in no catalogue of ours; the report shows its words as they are.",
        "Look for the words in NCCL's troubleshooting guide, and in the log file that the report names.",
    ),
    _seen(
        "nccl_versions_differ",
        "The ranks of the run use different versions of NCCL, which need not understand each other.",
        "Install the same torch, and the same NCCL, on all nodes.",
    ),
    _seen(
        "nccl_socket_despite_ib",
        "NCCL found InfiniBand or RoCE ports, and talks over TCP sockets all the same, at a fraction of the bandwidth.",
        "Look for NCCL_IB_DISABLE, NCCL_IB_HCA or NCCL_NET that rule the ports out on some node.",
    ),
    _seen(
        "nccl_socket",
        "NCCL talks over TCP sockets between hosts, for no InfiniBand or RoCE port was used: slow for training.",
        "Where the nodes have such ports, check that the container sees them (ibv_devinfo).",
    ),
    _seen(
        "nccl_no_gpudirect",
        "Links over InfiniBand go through host memory, for GPUDirect RDMA is not in use. That costs bandwidth.",
        "Load nvidia-peermem, or see NCCL_NET_GDR_LEVEL.",
    ),
)
