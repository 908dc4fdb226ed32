"""Whether parameters, optimizer state, frozen parameters and buffers are still finite round each step (worker).

Each look costs one number a group of tensors; only when that number is not finite is each tensor looked at.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.look.called import line_at_work
from nandiag.runtime.look.finite import is_bad, is_blank, local, norms, zeros_in
from nandiag.runtime.look.frozen import Frozen
from nandiag.runtime.memory.known.masks import Masks, has_mask_of, is_added, may_be
from nandiag.runtime.memory.weakly import Staying
from nandiag.runtime.names import Owner, find_roots, owners
from nandiag.runtime.names.alive import living
from nandiag.runtime.names.variables import Variables

Optimizer: TypeAlias = torch.optim.Optimizer
# Optimizer state beyond this many tensors is looked at in turns, so that a look stays far below the update's own cost.
_ALL_STATE = 64
_TURNS = 8
_TRIES = 8
# A step so far back says little of when state turned bad.
_LONG_AGO = 64
# All live objects are gone through for it: a task of meta-learning, or a client, may have an optimizer of its own.
_STOCK_SHARE, _FREE_STOCKS = 0.02, 8
# FSDP1 shards into flat parameters, or into plain views of them, that do not show what they are.
_FSDP1 = "FullyShardedDataParallel"


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor with its name, as found when it was looked for."""

    name: str
    what: str
    tensor: Tensor
    owner: Owner | None = None


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's parameters in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def drops_all(owner: object, optimizers: Iterable[Optimizer]) -> bool:
    """Whether none of them is left a gradient once ``owner``, an optimizer or module, has dropped those of its own."""
    own: set[int] = set()
    if isinstance(owner, torch.optim.Optimizer):
        own = {id(one) for one in parameters(owner)}
    elif isinstance(owner, torch.nn.Module):
        own = {id(one) for one in owner.parameters()}
    return all(one.grad is None or id(one) in own for optimizer in optimizers for one in parameters(optimizer))


def is_of_torch(optimizer: Optimizer) -> bool:
    """Whether its update is code of torch's, and none of the script's or a library's."""
    return str(getattr(type(optimizer).step, "__module__", "")).startswith("torch.")


@dataclass(frozen=True, slots=True)
class Began:
    """What an optimizer's first update found, here or since it was loaded; how many it had ``made`` here by then.

    Parameters that were ``blank``, 0 all over, and what state each had, both by ``id``. The state has how many zeros it
    held under each key: an optimizer of the script's own may fill some of it before, and write over it after its use.
    """

    blank: frozenset[int] = frozenset()
    state: Mapping[int, Mapping[Any, int]] = field(default_factory=dict)
    made: int = 0

    @classmethod
    def of(cls, optimizer: Optimizer, made: int) -> Began:
        """Look at an optimizer whose next update is the first one."""
        blank = frozenset(id(one) for one in parameters(optimizer) if is_blank(one))
        states = [(one, state) for one, state in optimizer.state.items() if isinstance(state, dict)]
        count = _no_zeros if is_of_torch(optimizer) else zeros_in
        return cls(blank, {id(one): {key: count(held) for key, held in state.items()} for one, state in states}, made)


class Weights:
    """Names every tensor that must stay finite, and finds those that did not."""

    def __init__(self) -> None:
        self.owners: dict[int, Owner] = {}
        self._excused: dict[int, Staying] = {}
        self._masked: dict[int, Staying] = {}
        self._sharded: MutableMapping[Optimizer, bool] = WeakIdKeyDictionary()
        self._met = WeakIdKeyDictionary()
        self._begun = WeakIdKeyDictionary()
        self.newest: Callable[[], Optimizer | None] = _none
        self.on_begun: Callable[[Optimizer], object] = _none_of
        self.filled_at: MutableMapping[Optimizer, str | None] = WeakIdKeyDictionary()
        self._began: MutableMapping[Optimizer, Began] = WeakIdKeyDictionary()
        self._frozen = Frozen()
        self.masks = Masks()
        self._variables = Variables()
        self._renewals = _TRIES
        self._turn = 0
        self._whole: MutableMapping[Optimizer, int] = WeakIdKeyDictionary()
        self.in_turns = self.in_parts = False
        self.loads = 0
        self._stocks, self._spent, self._since_made = 0, 0.0, time.perf_counter()
        self._fsdp = False
        self.suspects: list[Tensor] = []

    def met(self, optimizer: Optimizer) -> None:
        """An optimizer is being made."""
        self._met[optimizer] = None

    def known(self) -> list[Optimizer]:
        """Return the optimizers that were made and still live."""
        return [one for one in living(self._met) if hasattr(one, "param_groups")]

    def begin(self, optimizer: Optimizer, made: int = 0) -> list[Held]:
        """Take stock when an optimizer is met, or was loaded: return the parameters and state that are bad already.

        ``made``: how many updates it has made here.

        A frozen parameter that an optimizer was given all the same is a mask or scratch if it is bad from the start.
        """
        if self.newest() is optimizer:
            return []
        self.newest = weakref.ref(optimizer)
        if optimizer in self._begun:
            return []
        self._begun[optimizer] = None
        self.on_begun(optimizer)
        self._meet(optimizer)
        self._began[optimizer] = Began.of(optimizer, made)
        found = self.bad(optimizer)
        meant = [one for one in found if _asleep(one) or (not self.filled(optimizer) and _is_extreme(optimizer, one))]
        self.excuse(meant)
        return [one for one in found if not self._is_excused(one.tensor)]

    def _meet(self, optimizer: Optimizer) -> None:
        """Take stock; of many optimizers in a small share of the time, for all that is alive is gone through."""
        passed = time.perf_counter() - self._since_made
        if self._stocks >= _FREE_STOCKS and self._spent > _STOCK_SHARE * passed:
            self._frozen.trains(map(id, parameters(optimizer)))
            return
        began = time.perf_counter()
        self.take_stock(optimizer)
        self._stocks, self._spent = self._stocks + 1, self._spent + time.perf_counter() - began

    def loaded(self, optimizer: Optimizer) -> None:
        """Its state was loaded from somewhere: it is looked at before the next update."""
        self.loads += 1
        self._begun.pop(optimizer, None)
        self.newest = _none
        self.filled_at[optimizer] = line_at_work()

    def filled(self, optimizer: Optimizer) -> bool:
        """Whether its state came from elsewhere: then even its first update here found some."""
        return optimizer in self.filled_at

    def began(self, optimizer: Optimizer, made: int) -> Began | None:
        """Return what its newest update found, of the ``made`` here; None where it was not the first, nor loaded."""
        began = self._began.get(optimizer, None if self.filled(optimizer) else Began())
        return began if began is not None and began.made == made - 1 else None

    def take_stock(self, optimizer: Optimizer | None = None) -> None:
        """Find all live modules anew and name their tensors."""
        roots = find_roots()
        self.owners = owners(roots)
        self._fsdp = any(type(module).__name__ == _FSDP1 for root in roots for module in root.modules())
        trained = {id(tensor) for known in living(self._begun) for tensor in parameters(known)}
        if optimizer is not None:
            trained |= {id(tensor) for tensor in parameters(optimizer)}
        self._frozen.take_stock(roots, trained, {id(tensor) for one in self.known() for tensor in parameters(one)})

    def scalars(self, optimizer: Optimizer, *, quick: bool, whole: bool = False) -> list[Tensor]:
        """Return 0-d tensors that are finite only if the parameters and this turn's optimizer state all are.

        ``quick``: steps are so short that state is looked at in turns however little there is of it; ``whole``: all of
        the state, whose turn it is or not.
        """
        states = list(optimizer.state.items()) if whole else self._state_turn(optimizer, quick=quick)
        tensors = [*parameters(optimizer), *_tensors_of(states)]
        if self._excused:
            tensors = [tensor for tensor in tensors if not self._is_excused(tensor)]
        if self._masked:
            tensors = [self._unmasked(tensor) for tensor in tensors]
        return norms(tensors)

    def turn(self, optimizer: Optimizer) -> list[Tensor]:
        """Return 0-d tensors that are finite only if this turn's parameters are; each has its turn in eight steps."""
        self.in_turns = self.in_parts = True
        self._turn = (self._turn + 1) % _TURNS
        return norms(parameters(optimizer)[self._turn :: _TURNS])

    def all_scalars(self) -> list[Tensor]:
        """Return the same of all optimizers that still live."""
        return [scalar for one in self.known() for scalar in self.scalars(one, quick=False)]

    def seen_whole(self, optimizer: Optimizer, step: int) -> None:
        """All of its state was seen finite after the update of ``step``."""
        self._whole[optimizer] = step

    def state_since(self, optimizer: Optimizer, step: int) -> int | None:
        """Return the last step after which all of its state was seen finite; None if that is long before ``step``."""
        return self._since(optimizer, step) if self.in_turns else step - 1

    def weights_since(self, optimizer: Optimizer, step: int) -> int | None:
        """Return the same of all of its weights."""
        return self._since(optimizer, step) if self.in_parts else step - 1

    def _since(self, optimizer: Optimizer, step: int) -> int | None:
        known = self._whole.get(optimizer)
        return known if known is not None and known < step <= known + _LONG_AGO else None

    @property
    def watches_frozen(self) -> bool:
        """Whether there are buffers or frozen parameters to look at."""
        return bool(self._frozen.places)

    def frozen(self) -> list[Tensor]:
        """Return 0-d tensors that are finite only if the buffers and frozen parameters written to since are."""
        return self._frozen.norms()

    def bad(self, optimizer: Optimizer) -> list[Held]:
        """Look at every tensor exactly; reads the host. Excused ones (bad from the start, by design) are left out."""
        found = list(self._bad(self._named(optimizer), "parameter"))
        found += self._bad(self._named_state(optimizer), "optimizer_state")
        found = [held for held in found if not self._is_excused(held.tensor)]
        self.leave_masked(held for held in found if self._is_mask(held, optimizer))
        return [held for held in found if not (self._is_masked(held.tensor) and may_be(held.tensor))]

    def _is_mask(self, held: Held, optimizer: Optimizer) -> bool:
        if self.masks.hold(held.tensor):
            return True
        is_weight = held.what == "parameter" and optimizer in self._begun
        return is_weight and may_be(held.tensor) and self.masks.unseen(optimizer, held.tensor)

    def bad_frozen(self) -> list[Held]:
        """Return the buffers and frozen parameters that were finite once and are not now; each is told once."""
        masks = self.masks
        bad = self._frozen.bad(
            lambda one: is_added(one) or masks.begin(one) or self._averages(one) or masks.hold(one, again=True)
        )
        found = [Held(name, what, tensor, self.owners.get(id(tensor))) for name, what, tensor in bad]
        self.suspects = [held.tensor for held in found]
        return found

    def _averages(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is an average of a trained weight that a mask was laid into, by the looks of it."""
        like = [one for known in self.known() for one in parameters(known) if one.shape == tensor.shape]
        return has_mask_of(tensor, [one for one in like if self._is_masked(one) or self.masks.hold(one)])

    def excuse(self, held: Sequence[Held]) -> None:
        """Do not tell of these again, and keep them out of the looks to come."""
        self._excused |= {id(one.tensor): Staying(one.tensor) for one in held}

    def leave_masked(self, held: Iterable[Held]) -> None:
        """What is -inf in these is meant so; the rest of them is to stay finite."""
        self._masked |= {id(one.tensor): Staying(one.tensor) for one in held}

    def _is_excused(self, tensor: Tensor) -> bool:
        return _is_among(self._excused, tensor)

    def _is_masked(self, tensor: Tensor) -> bool:
        return _is_among(self._masked, tensor)

    def sharded(self, optimizer: Optimizer) -> bool:
        """Tell whether the optimizer's parameters are shards, so that the ranks' gradients differ."""
        known = self._sharded.get(optimizer)
        if known is None:
            known = self._fsdp or any(hasattr(one, "_local_tensor") for one in parameters(optimizer))
            self._sharded[optimizer] = known
        return known

    def _bad(self, named: Iterator[tuple[str, Tensor]], what: str) -> Iterator[Held]:
        for name, tensor in named:
            if is_bad(tensor):
                yield Held(name, what, tensor, self.owners.get(id(tensor)))

    def name(self, tensor: Tensor, optimizer: Optimizer) -> str:
        """Return the FQN of a parameter, else what the script calls it, or its place in the optimizer."""
        owner = self.owners.get(id(tensor)) or self._come_since(tensor)
        own = owner.fqn if owner is not None else self._variables.name(tensor, parameters(optimizer))
        if own is not None:
            return own
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter is tensor:
                    return f"param_groups[{number}].params[{index}]"
        return "a tensor"

    def _come_since(self, tensor: Tensor) -> Owner | None:
        """Return whose it is where a module grew since the stock was taken; looked for a few times at most."""
        if self._renewals <= 0:
            return None
        self._renewals -= 1
        self.owners |= owners(find_roots())
        return self.owners.get(id(tensor))

    def _named(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        return ((self.name(parameter, optimizer), parameter) for parameter in parameters(optimizer))

    def _named_state(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict) and isinstance(parameter, Tensor):
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{key} of {self.name(parameter, optimizer)}", value

    @property
    def excuses(self) -> bool:
        """Whether some tensor may be bad."""
        return bool(self._excused or self._masked)

    def _unmasked(self, tensor: Tensor) -> Tensor:
        """Return ``tensor``, where a mask was laid into it without its -inf: the rest is to stay finite."""
        data = local(tensor) if self._is_masked(tensor) else None
        return tensor if data is None else data.nan_to_num(math.nan, math.inf, 0.0)

    def _state_turn(self, optimizer: Optimizer, *, quick: bool) -> Iterable[tuple[Any, Any]]:
        states: Iterable[tuple[Any, Any]] = optimizer.state.items()
        if quick or len(optimizer.state) > _ALL_STATE:
            self.in_turns = True  # what was left out once may have been bad for a while
            self._turn = (self._turn + 1) % _TURNS
            return islice(states, self._turn, None, _TURNS)
        return states


def _is_among(known: dict[int, Staying], tensor: Tensor) -> bool:
    found = known.get(id(tensor))
    return found is not None and found() is tensor


def _none() -> None:
    """Stand in for a weak reference to no optimizer."""


def _none_of(_: Optimizer) -> None:
    """Stand in for nobody who would hear of an optimizer."""


def _no_zeros(_: object) -> int:
    """Stand in for a count: what torch's own updates divide by they write first."""
    return 0


def _tensors_of(states: Iterable[tuple[Any, Any]]) -> list[Tensor]:
    """Return the tensors among optimizer state, by what it is of, that may turn bad.

    Single numbers are counts and the like, or the optimizer's own affair, but where the parameter is one as well.
    """
    return [
        value
        for of, state in states
        if isinstance(state, dict)
        for key, value in state.items()
        if isinstance(value, Tensor) and (value.dim() or (key != "step" and isinstance(of, Tensor) and not of.dim()))
    ]


def _asleep(held: Held) -> bool:
    return held.what == "parameter" and not held.tensor.requires_grad


def _is_extreme(optimizer: Optimizer, held: Held) -> bool:
    """Whether state of a script's own optimizer is one infinity throughout: a running extreme begins so."""
    if held.what != "optimizer_state" or is_of_torch(optimizer):
        return False
    data = local(held.tensor)
    return data is not None and bool(data.isinf().all()) and bool((data == data.flatten()[0]).all())


def owners_of_state(optimizer: Optimizer, held: list[Held]) -> list[Tensor]:
    """Return the parameters whose optimizer state is among ``held``."""
    bad = {id(one.tensor) for one in held}
    return [
        parameter
        for parameter, state in optimizer.state.items()
        if isinstance(state, dict) and any(id(value) in bad for value in state.values())
    ]


def untouched(held: Sequence[Held]) -> tuple[str, ...]:
    """Return the names of tensors that are NaN throughout and never written to, where torch fills such with NaN."""
    filled = getattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    if not (filled and torch.are_deterministic_algorithms_enabled()):
        return ()
    plain = [one for one in held if type(one.tensor) in (Tensor, torch.nn.Parameter)]
    return tuple(one.name for one in plain if one.tensor._version == 0 and bool(one.tensor.isnan().all()))
