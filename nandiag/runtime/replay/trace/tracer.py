"""The op tracer of a replay: every aten op, its inputs and outputs, and where it was called (worker).

Only ops that handle non-finite values are kept; together they form the graph along which harm descended.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.runtime.belongings.signals import hurry
from nandiag.runtime.evidence.data.missing import is_on_the_way
from nandiag.runtime.evidence.data.samples.ancestry import Ancestry
from nandiag.runtime.evidence.elements import led_from
from nandiag.runtime.evidence.labels import own_name
from nandiag.runtime.evidence.op import Op, Outside, Stat, is_constant, stat_of
from nandiag.runtime.guard import Refused
from nandiag.runtime.kernels.determinants import Determinants
from nandiag.runtime.kernels.powers import Powers
from nandiag.runtime.kernels.unmoded import unmoded
from nandiag.runtime.kernels.written import is_lift, is_view, targets_of, unsaid
from nandiag.runtime.look.finite import fact, local
from nandiag.runtime.memory.kept import Kept, as_before, copies
from nandiag.runtime.memory.known import unwritten
from nandiag.runtime.memory.known.sound import Sound
from nandiag.runtime.memory.known.unwritten import EMPTY, Unwritten, hands_out, taken_for_values
from nandiag.runtime.memory.lost.shadows import Held, Shadows
from nandiag.runtime.memory.lost.vanished import Vanishing
from nandiag.runtime.memory.overwritten import Overwritten, drawn_from, outs_of, written_by
from nandiag.runtime.memory.there import key_of
from nandiag.runtime.replay.exchanges import carrier as carriers
from nandiag.runtime.replay.exchanges.carrier import Carriers, filled, is_through, put_in, wait_for, works_of
from nandiag.runtime.replay.mended import Mended
from nandiag.runtime.replay.trace.spots import Spots
from nandiag.runtime.tape.packed.nested import tensors_in

COLLECTIVES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")
_PLAIN_TYPES = (torch.Tensor, nn.Parameter)
_OWN = frozenset({"aten", "prims", "prim", "quantized", "inductor", "fsdp", "symm_mem"})  # torch's ops: they say it
# Collectives of which it is asked whether they have written: their works hold tensors.
_NEWEST = 8


class Communicates(Refused):
    """One rank alone came to a collective that it runs again."""


class Tracer(TorchDispatchMode):
    """Runs each op and keeps those with non-finite outputs; ``joint`` allows collectives, for all ranks run them."""

    too_long = "to run the step again takes too long where nothing is known to be wrong"

    def __init__(self, names: dict[int, str], *, joint: bool, mended: Mended | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spots = Spots(names)
        self.joint = joint
        # What a collective is called with in place of its arguments: shadows of the script's groups.
        self.instead: Callable[..., tuple[tuple[Any, ...], Any]] = lambda _, args, kwargs: (args, kwargs)
        # Whether each collective is waited for at once; where ranks send to each other in turn, none can be.
        self.waits = False
        self.until = math.inf  # by time.perf_counter()
        self.hurries = False  # whether it may end where a handler of signals waits for it
        self.ops = 0
        self._apart: Any = None  # the last op that a tensor subclass took apart
        self.given: list[Tensor] = []  # what the newest op was given, which may have refused it
        self._writer: dict[int, Op | None] = {}
        self._garbage, self._sound = Unwritten(), Sound()
        self._vanishing, self._shadows = Vanishing(), Shadows()
        self._determinants, self._powers, self.ancestry = Determinants(), Powers(), Ancestry()
        self._still = False
        self.kept = Kept()
        self.overwritten: Overwritten | None = None
        self.at_stake: Callable[[], Iterable[Tensor]] = tuple  # what is written to unseen, where CUDA graphs run
        self.gathered: list[tuple[Tensor, Tensor]] = []  # leaves with the gradients that they had before
        self.own: set[int] = set()  # memory that may be written over: made by the replay, or put back by others
        self._collected: Op | None = None
        self._made: dict[int, StorageWeakRef] = {}
        self.brought: set[int] = set()
        self._by_others: set[int] = set()  # memory that holds what others than torch wrote there in the step
        self.versions: dict[int, int] = {}  # of weights and buffers as they were, by their id
        self.sent: list[Op] = []
        self.unsaid: set[str] = set()  # ops of others, which may write into anything though none of them says so
        self.mended = mended  # whose results are made finite
        self.given_to_updates: list[Tensor] = []  # gradients for updates within backward, which are left out
        self._carriers = Carriers()
        self._newest: deque[tuple[Op, list[Any]]] = deque(maxlen=_NEWEST)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Run ops of ours unseen."""
        before, self._still = self._still, True
        try:
            yield
        finally:
            self._still = before

    # ------------------------------------------------------------------ ops

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one op and look at it."""
        kwargs = kwargs or {}
        if self._still:
            if func._schema.is_mutable:
                self._sound.doubt(map(key_of, tensors_in((args, kwargs))))
            return unmoded(func)(*args, **kwargs)
        if self.hurries:
            hurry()
        if time.perf_counter() > self.until:
            raise Refused(self.too_long)
        if any(kind not in _PLAIN_TYPES and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            self._apart, _ = func, self.spots.of(str(func))  # the node that autograd has made of it by now is its own
            return NotImplemented  # a subclass (DTensor) takes its op apart, and its local ops come by here
        self.ops += 1
        if func._schema.name.startswith(COLLECTIVES):
            return self._collective(func, args, kwargs)
        return self._op(func, args, kwargs)

    def _op(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], instead: Callable[..., Any] | None = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        spot = self.spots.of(str(func))
        given = tensors_in((args, list(kwargs.values())))
        keys = list(map(key_of, given))
        self._begin(map(key_of, taken_for_values(func, given, [key in self._garbage for key in keys])))
        outs = outs_of(func, kwargs) if kwargs else []
        mutable = bool(func._schema.is_mutable)
        writes = mutable or func.namespace != "aten"  # perhaps unsaid: behind it nobody knows what went in
        self._sound.doubt(keys if writes else ())
        stats = [self._stat(one) if not is_lift(func) and not any(one is out for out in outs) else None
                 for one in given]  # fmt: skip
        words = as_before(func, args, kwargs)
        self.kept.written(keys if mutable else map(key_of, unsaid(func, args)))
        self._put_aside(func, args, kwargs)
        self.given = given
        held = list(zip(keys, given, strict=True))
        again = self._shadows.before(func, args, kwargs, given)
        room = unwritten.bytes_of(given, name)
        output = (instead or unmoded(func))(*args, **kwargs)
        outputs = tensors_in(output)
        self._pin(outputs, [*keys, *unwritten.renamed(name, outputs)])
        if self.mended is not None:
            self.mended.put_in(spot, func, outputs or outs, stats)
        written = targets_of(func, args, given, outputs or outs, mutable=mutable)
        made = _by_key(written)
        if not is_view(func):
            self._sound.doubt((*(keys if writes else ()), *(key for key, _ in made)))
        if name in EMPTY:
            known = unwritten.is_known(name, outputs, room, stats)
            return output if known else self._hand_out(Op(self.ops, func, spot, [], []), outputs, output)
        op = Op(self.ops, func, spot, [], stats, words=words, apart=func is self._apart)
        self._determinants.ran(op)
        self._powers.ran(op)
        self._vanishing.ran(op, held, made)
        self._written(op, held, made, mutable=mutable)
        self._shadows.ran(op, again, held, made)
        return output

    def _hand_out(self, op: Op, outputs: list[Tensor], output: Any) -> Any:
        self._garbage.handed_out(map(key_of, outputs), op)
        self._forget(map(key_of, outputs), set(), mutable=False)
        return output

    def _written(self, op: Op, given: list[Held], made: list[Held], *, mutable: bool) -> None:
        """Look at what an op has written, and note the op as its writer where that is bad."""
        written = [tensor for _, tensor in made]
        if mutable or op.func.namespace != "aten":
            self._begin(key for key, _ in made)
        self.unsaid |= {str(op.func)} if not mutable and op.func.namespace not in _OWN else set()
        op.outputs = [self._stat(tensor) for tensor in written]
        inside = {key for key, _ in given}
        self.ancestry.ran(op, given, made)
        if not any(op.outputs):
            self._forget((key for key, _ in made), inside, mutable=mutable)
            return
        if not mutable and op.func.namespace == "aten" and (op.spot.node is None or not any(op.inputs)):
            self._look_again(op, given, written)
        op.inputs = led_from(op, [tensor for _, tensor in given], written)
        self._parents(op, given)
        self._determinants.laid(op)
        op.powered = self._powers.laid(op)
        op.constant = is_constant(op)
        self._keep_facts(op, written, inside, mutable=mutable)
        for (key, _), stat in zip(made, op.outputs, strict=True):
            if stat is not None and not (mutable and op.parents and all(map(hands_out, op.parents))):
                # To take a part of what was there before is no use of it.
                if key not in inside or op.parents or op.born or not is_view(op.func):
                    self._writer[key] = op
            elif key not in inside:
                self._writer.pop(key, None)

    def _look_again(self, op: Op, given: list[Held], written: list[Tensor]) -> None:
        """Something bad was made of what went in: others than torch may have written there since it was looked at."""
        self._sound.doubt(key for key, _ in given)
        op.inputs = [stat or (None if is_lift(op.func) or any(one is other for other in written) else self._stat(one))
                     for (_, one), stat in zip(given, op.inputs, strict=True)]  # fmt: skip

    def _keep_facts(self, op: Op, written: list[Tensor], inside: set[int], *, mutable: bool) -> None:
        # Arguments and results are kept of ops that may prove to be the origin, of few, and never of the long tail of
        # ops that only hand bad values on.
        told = op.born or op.born_nan or op.outside or mutable or op.sums or op.empties or op.picks
        if self.kept.room and (told or is_on_the_way(op)):
            op.results = [tensor.detach() for tensor in written]
            self.kept.keep(op, inside | {key_of(tensor) for tensor in written})
            # C++ writes into a bucket in the end; FSDP frees what it gathered by its storage, which no op tells of.
            freed = self.joint and (op.born or op.born_nan)
            if self.waits or freed or op.func.namespace != "aten":
                op.words, op.results = (copies(*op.words) if op.words else None), copies(op.results, {})[0]
        else:
            op.words = None

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.joint:
            name = func._schema.name
            raise Communicates(f"the model communicates ({name}) and not every rank takes part in this replay")
        given = tensors_in((args, list(kwargs.values())))
        spot = self.spots.of(str(func))
        sent = {id(tensor) for tensor in put_in(func, [*args, *kwargs.values()])}
        stats = [self._stat(tensor) if id(tensor) in sent else None for tensor in given]
        spot = replace(spot, phase="collective")
        op = Op(self.ops, func, spot, [], stats, collective=True, through=carriers.only_waits(func))
        self._parents(op, _by_key(given))
        op.outside.clear()
        with self.still():
            op.carrier = self._carriers.of(func, [*args, *kwargs.values()])
        if op.carrier is not None:
            self._collected = op
            self.sent += [op] if any(op.inputs) else []
        self._put_aside(func, args, kwargs)
        args, kwargs = self.instead(func, args, kwargs)
        output = func(*args, **kwargs)
        self._newest.append((op, works_of(output)))
        if self.waits:
            wait_for(self._newest[-1][1])
        self._pin(tensors_in(output), map(key_of, given))
        # An asynchronous collective has not written yet, so its outputs are taken to be as bad as they turn out later.
        for tensor in [*filled(func, given), *tensors_in(output)]:
            self._writer[key_of(tensor)] = op
            self._garbage.written([key_of(tensor)])
            self._shadows.written(key_of(tensor))
        return output

    def _parents(self, op: Op, given: list[Held]) -> None:
        # What an op writes in place is told as it was before.
        own = None if op.words is None else tensors_in((op.words[0], list(op.words[1].values())))
        before = own if own is not None else [tensor for _, tensor in given]
        for (key, tensor), stat, held in zip(given, op.inputs, before, strict=True):
            writer = self._writer.get(key)
            if stat is None and not (writer is not None and op.collective and self._may_write(writer, tensor)):
                continue
            writer = writer or self._backend(tensor)
            if writer is None:
                op.outside.append(Outside(tensor, fact(held), own_name(*self.spots.inside, tensor)))
            elif writer not in op.parents:
                op.parents.append(writer)
                if not writer.outputs and hands_out(writer):
                    writer.outputs, writer.told = [stat], ((), (fact(tensor),))
        if op.outside or not all(map(hands_out, op.parents)):  # what is left may be written over yet
            op.parents = [one for one in op.parents if not hands_out(one)]

    def _may_write(self, writer: Op, tensor: Tensor) -> bool:
        """Whether a collective may be at work on what looks finite, and be bad in the end; no script need wait here."""
        works = next((works for one, works in self._newest if one is writer), [])
        through = writer.through or is_through(works)
        return writer.collective and not (through and self._stat(tensor) is None)

    def _put_aside(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.overwritten is not None:
            self.overwritten.before(one for one in written_by(func, args, kwargs) if key_of(one) not in self.own)
            self.overwritten.drew |= bool(drawn_from(func, args, kwargs))

    def _pin(self, outputs: list[Tensor], given: Iterable[int]) -> None:
        self.own |= {key_of(one) for one in outputs}.difference(given)
        # A weak reference keeps the storage's address from being given to another one, not its memory.
        for tensor in outputs:
            key = key_of(tensor)
            if key not in self._made:
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    self._made[key] = StorageWeakRef(tensor.untyped_storage())

    def _backend(self, tensor: Tensor) -> Op | None:
        # gloo makes a reduce_scatter of other ops, and a backend writes when it likes: what no op is known to have
        # written and nobody brought.
        key = key_of(tensor)
        return self._collected if key not in self.brought and key not in self._by_others else None

    def others_wrote(self, tensor: Tensor) -> None:
        """What is bad there was written by others than torch, and not by the op that wrote there last.

        What was handed out and never written in part holds anything by itself.
        """
        key = key_of(tensor)
        writer = self._writer.get(key)
        if writer is None or not hands_out(writer):
            self._by_others.add(key)
            self._writer.pop(key, None)

    def arrives(self, tensor: Tensor) -> None:
        """Another rank would send this now, and does not: memory that nobody wrote yet holds 0 instead."""
        if key_of(tensor) in self._garbage:
            self._garbage.written([key_of(tensor)])
            with self.still(), torch.no_grad():
                tensor.zero_()

    def lies(self, tensor: Tensor, was: Tensor | None) -> None:
        """What of ``tensor`` nobody wrote held other numbers in the step itself: what was bad there is so again."""
        key = key_of(tensor)
        maker = self._writer.get(key)
        if was is not None and maker is not None and hands_out(maker) and self._stat(tensor) is None:
            with self.still(), torch.no_grad():
                tensor.detach().copy_(torch.where(was.isfinite(), tensor, was))
            self._sound.doubt([key])

    def _begin(self, written: Iterable[int]) -> None:
        """Memory that nobody wrote before is written into: what is left of it comes of whoever handed it out."""
        self._writer.update(self._garbage.written(written))

    def _forget(self, written: Iterable[int], inside: set[int], *, mutable: bool) -> None:
        for key in written:
            if key not in inside:
                self._writer.pop(key, None)
            elif mutable and (writer := self._writer.get(key)) is not None:
                writer.through = True  # gloo itself writes there when it is waited for, and no script does before

    @property
    def communicated(self) -> bool:
        """Whether the replay has run a collective."""
        return self._collected is not None

    def writer(self, tensor: Tensor) -> Op | None:
        """Return the op that last wrote non-finite values into what this rank holds of ``tensor``."""
        with self.still():
            data = local(tensor)
            return None if data is None else self._writer.get(key_of(data))

    def bad(self, tensor: Tensor) -> bool:
        """Tell whether what this rank holds of ``tensor`` is non-finite."""
        with self.still():
            return stat_of(tensor) is not None

    def _stat(self, tensor: Tensor) -> Stat | None:
        key = key_of(tensor)
        if key in self._garbage or self._sound.holds(key, tensor):  # what nobody has written yet holds nothing
            return None
        with self.still():
            try:
                stat = stat_of(tensor)
                if stat is None and not self.joint:  # others write into what is exchanged, when they like
                    self._sound.saw(key, tensor)
            except (RuntimeError, NotImplementedError):
                return None
        return stat


def _by_key(tensors: list[Tensor]) -> list[Held]:
    return [(key_of(one), one) for one in tensors]
