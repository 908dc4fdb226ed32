"""The kinds of hang in words, for ``nandiag explain`` (reader side)."""

from __future__ import annotations

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

_GLOO = "distributed.html"

EXPLAIN = (
    Explanation(
        slug="collective_missing",
        what="Ranks waited in a collective that another rank did not call. The ranks of a group meet call by call, in "
        "the order in which each makes them: whoever leaves one out, or leaves the script, holds up all others.",
        looks=("rank 1 did not come to all_reduce 6 of the default group, in which rank 0 waited",),
        fix=(
            Suggestion(
                "Look at what stands before the call: a branch on the rank, on a loss, on the length of the data."
            ),
            Suggestion(
                "Let ranks with less data take part to the end.", "with torch.distributed.algorithms.Join([model]):"
            ),
        ),
        pages=(_GLOO, "distributed.algorithms.join.html"),
        kind="finding",
    ),
    Explanation(
        slug="collective_mismatch",
        what="The ranks of a group called different things as the same call: another collective, another size or "
        "dtype, another source or reduction. Backends do not check this; they hang, fail "
        "with words on sizes, or mix up data.",
        looks=("the ranks called broadcast 3 of the default group with different sources: rank 0 on rank 0, ...",),
        fix=(
            Suggestion("Make the call alike on all ranks."),
            Suggestion("Let torch check each call, slowly.", "TORCH_DISTRIBUTED_DEBUG=DETAIL nandiag run ..."),
        ),
        pages=(_GLOO,),
        kind="finding",
    ),
    Explanation(
        slug="collective_order",
        what="Ranks waited for each other in different groups: one uses group A first and then B, another B and "
        "then A.",
        fix=(Suggestion("Use the groups in the same order on all ranks."),),
        pages=(_GLOO,),
        kind="finding",
    ),
    Explanation(
        slug="message_missing",
        what="A rank waited for a message that its peer never sent, or sent one that its peer never took. Messages "
        "between two ranks meet in the order in which they are sent and asked for.",
        fix=(Suggestion("Pair each recv with one send of its peer, in the same order and the same group."),),
        pages=(_GLOO + "#point-to-point-communication",),
        kind="finding",
    ),
    Explanation(
        slug="collective_stuck",
        what="Every rank made the same call, and it did not end. Then it is no order of calls: the network, a device "
        "or the backend holds it up.",
        fix=(Suggestion("Let NCCL say more.", "nandiag run --nccl full ..."),),
        pages=(_GLOO,),
        kind="finding",
    ),
    Explanation(
        slug="standstill",
        what="No rank made progress, and no collective explains it: the report shows where each stood. A DataLoader "
        "that waits for its workers, a lock that is never released, a loop without end.",
        fix=(Suggestion("Look at the lines that the report shows."),),
        pages=("data.html",),
        kind="finding",
    ),
)
