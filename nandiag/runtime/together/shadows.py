"""The groups that a joint replay communicates on: ours, with the members of the script's, made for it (worker).

A collective that breaks off leaves a group unusable, and its ranks a call apart. So the script's groups take no part in
a replay: each op is given a shadow of its group instead. A rank that fails lets go of its shadows, which ends the waits
of the others with an error; a rank that hangs meets the time-out. The script's groups are what they were.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nandiag.runtime.guard import Refused

_PREFIX = "nandiag/shadow/"
_GROUP_TYPE = "c10d.ProcessGroup"
_NAMED = frozenset({"group_name", "group"})


def groups() -> list[Any]:
    """Return the process groups that this rank is a member of, in the same order on all of their members."""
    return sorted(dist.distributed_c10d._world.pg_map, key=lambda one: one.group_name)


def possible() -> bool:
    """Whether each group of this rank runs on gloo alone: of no other backend is a second group made by the way."""
    with contextlib.suppress(Exception):
        backends = {
            one.split(":")[-1] for group in groups() for one in dist.get_backend_config(group).lower().split(",")
        }
        return backends == {"gloo"}
    return False


def _prefixed(name: str, store: Any) -> Any:
    return dist.distributed_c10d.PrefixStore(name, store)


class Shadows:
    """A shadow of each group that this rank is in; collective over the members of each, bounded by ``patience``.

    Raises what gloo or the store raises where a member does not come.
    """

    def __init__(self, store: Any, patience: timedelta) -> None:
        self._made: dict[str, Any] = {}
        try:
            for group in groups():
                name = group.group_name
                self._made[name] = _shadow(_prefixed(name, store), group, patience)
        except Exception:
            self.close()
            raise

    def instead(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Return the arguments of a collective with shadows for groups; Refused for one made during the replay."""
        schema = func._schema.arguments
        given = [self._instead(one, word) for one, word in zip(schema, args, strict=False)]
        by_name = {one.name: one for one in schema}
        return (*given, *args[len(given) :]), {
            key: self._instead(by_name[key], word) if key in by_name else word for key, word in kwargs.items()
        }

    def _instead(self, argument: Any, word: Any) -> Any:
        if argument.name in _NAMED and isinstance(word, str):
            return self._of(word).group_name
        if isinstance(word, dist.ProcessGroup):
            return self._of(word.group_name)
        if isinstance(word, torch.ScriptObject) and str(argument.type).endswith(_GROUP_TYPE):
            return self._of(dist.ProcessGroup.unbox(word).group_name).boxed()
        return word

    def _of(self, name: str) -> Any:
        known = self._made.get(name)
        if known is None:
            raise Refused("the model communicates on a process group that it makes each time")
        return known

    def close(self) -> None:
        """Let go of all of them."""
        for one in self._made.values():
            with contextlib.suppress(Exception):
                torch._C._distributed_c10d._unregister_process_group(one.group_name)
        self._made.clear()


def _shadow(store: Any, group: Any, patience: timedelta) -> Any:
    made = dist.ProcessGroup(store, group.rank(), group.size())
    backend = dist.ProcessGroupGloo(_prefixed("gloo/", store), group.rank(), group.size(), patience)
    kind = dist.ProcessGroup.BackendType.GLOO
    for device in group._device_types:
        made._register_backend(device, kind, backend)
    made._set_default_backend(kind)
    made._set_group_name(_PREFIX + group.group_name)
    torch._C._distributed_c10d._register_process_group(made.group_name, made)
    return made
