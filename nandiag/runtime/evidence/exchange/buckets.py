"""Which of DDP's gradient buckets carried bad values to this rank, by the names of their parameters (worker).

DDP itself tells which parameters lie in which bucket, once it has rebuilt its buckets after the first step; where it
does not tell, or its word does not fit the parameters that it now has, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.evidence.exchange.exchanged import hook_of
from nandiag.runtime.look.finite import is_bad

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket: its place in the order in which DDP reduces them, and the names of its parameters."""

    number: int
    names: tuple[str, ...]


def with_buckets(looked: Looked, roots: list[nn.Module]) -> Looked:
    """Add the all-reduces through which a DDP root's gradients of this step became bad.

    Where the look names the collective of a communication hook already, only the buckets are added.
    """
    for root in roots:
        bad = _bad(root)
        if bad:
            way = {} if "carried_by" in looked.facts else _way(root)
            return replace(looked, facts={**looked.facts, **way, **_facts(bad, len(buckets_of(root)))})
    return looked


def _way(root: Any) -> dict[str, object]:
    """Return what carries the gradients of a DDP root: what a hook sends of a bucket need not be the bucket itself."""
    hook, group = hook_of([root]), root.process_group
    return {
        "carried_by": "all_reduce" if hook is None else f"communication hook {hook}",
        "group": str(getattr(group, "group_desc", "") or group.group_name),
        "group_ranks": list(dist.get_process_group_ranks(group)),
    }


def _facts(bad: list[Bucket], total: int) -> dict[str, object]:
    return {
        "buckets": [one.number for one in bad],
        "of_buckets": total,
        "bucket_parameters": list(bad[0].names[:_MOST_NAMES]),
        "bucket_size": len(bad[0].names),
    }


def _bad(root: nn.Module) -> list[Bucket]:
    """Return the buckets of which all that backward filled, as far as this rank holds it, are seen to hold harm."""
    if not hasattr(root, "reducer") or not hasattr(root, "process_group"):
        return []
    held = dict(_named(root))
    found = []
    for bucket in buckets_of(root):
        gradients = [held[name].grad for name in bucket.names]
        if any(one is not None and is_bad(one) for one in gradients):
            found.append(bucket)
    return found


def buckets_of(ddp: Any) -> list[Bucket]:
    """Return the buckets in the order of their reduction; none where DDP does not tell them."""
    names = [name for name, _ in _named(ddp)]
    try:
        told = ddp._get_ddp_logging_data()
        if told.get("has_rebuilt_buckets"):
            groups = [
                [int(one) for one in part.split()] for part in told["rebuilt_per_bucket_param_indices"].split(",")
            ]
        else:
            # One bucket holds all; of several, not yet rebuilt, only the sizes are told.
            groups = [list(range(len(names)))] if "," not in told["bucket_sizes"] else []
    except Exception:
        return []
    if sorted(index for group in groups for index in group) != list(range(len(names))):
        return []
    return [Bucket(number, tuple(names[index] for index in group)) for number, group in enumerate(groups)]


def _named(ddp: Any) -> list[tuple[str, nn.Parameter]]:
    ignored = getattr(ddp, "parameters_to_ignore", ())
    every = ddp.module.named_parameters()
    return [(name, one) for name, one in every if one.requires_grad and name not in ignored]
