"""Run the tape again in place, and leave every trace of it wiped (worker)."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.collectives.own_part import OwnPart
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import BOUNDARIES
from nandiag.runtime.guard import Refused
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.look.finite import largest
from nandiag.runtime.look.losses import divided, factor_of
from nandiag.runtime.memory.later.moved import by_data
from nandiag.runtime.memory.there import all_there, key_of
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.exchanges.alone import forwards_of, without_collectives
from nandiag.runtime.replay.exchanges.shared import Shared
from nandiag.runtime.replay.trace.tracer import Communicates, Tracer
from nandiag.runtime.replay.update import views
from nandiag.runtime.replay.written import getter, targets_of, written_by
from nandiag.runtime.tape.calls import setting
from nandiag.runtime.tape.calls.outputs import given_out, shards_of
from nandiag.runtime.tape.calls.sides import left_at
from nandiag.runtime.tape.calls.swaps import Swapped
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, CALL, ROOT, Entry
from nandiag.runtime.tape.loop.forwards import in_place
from nandiag.runtime.tape.packed.lasting import Lasting
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import Given, Made, Rebuilt, base_of, version_of
from nandiag.runtime.tape.state import under

_backward, _grad = torch.autograd.backward, torch.autograd.grad


@dataclass(slots=True)
class Rerun:
    """What came of running the tape again: the roots of backward calls, and what could not be as it had been.

    ``factors`` are the numbers that the losses were multiplied by as the last thing before backward, 1 where none was.
    ``blank``: zeros stood for bad gradients that nothing of this made.
    ``rewritten`` are, by storage, the copies that took the script's writes into tensors from outside: modules that hold
    such a tensor ran with the tensor itself. ``originals`` are these, by the storages of the copies.
    """

    losses: list[tuple[Tensor, int]] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    stale: list[Tensor] = field(default_factory=list)
    unmade: list[tuple[Entry, Tensor]] = field(default_factory=list)
    doubts: set[str] = field(default_factory=set)
    cut: bool = False
    blank: bool = False
    gaps: int = 0
    seconds: float = 0.0
    largest_gradient: float | None = None
    shared: Shared | None = None
    scalars: list[Tensor] = field(default_factory=list)
    outputs: dict[int, list[Tensor]] = field(default_factory=dict)
    rewritten: dict[int | None, Tensor] = field(default_factory=dict)
    originals: dict[int | None, Tensor] = field(default_factory=dict)


Phases = Mapping[int, str]  # of each entry, by its id


class _Gone(Exception):  # noqa: N818 - no error: the script let go of it
    """A value that an entry needs is not to be had any more."""


class Player:
    """Plays entries in order under a tracer; ``instead`` maps the ``id`` of a tensor to what stands in for it.

    Where the ``case`` is apart some entries are not played, and what they made is taken as it is; what is gone with
    them is left out.
    """

    def __init__(
        self, tracer: Tracer, instead: dict[int, Tensor], leaves: list[Tensor], case: Case | None = None,
        exposed: Iterable[Callable[[], Tensor | None]] = (),
    ) -> None:  # fmt: skip
        self.tracer, self._exposed = tracer, exposed
        self._apart = case is not None and case.apart
        self._broken = None if case is None else case.broken
        # Without an optimizer, or left in its backward, a rank waits only where its loss is not bad by then.
        self._in_company = case is not None and case.may_be_joined and not (case.by_hand or case.left)
        self._alone = case is not None and case.unfinished and case.single
        self._shares = case is not None and case.shares
        self._factor = 1.0 if case is None else case.factor
        self._shared = Shared([], again=False)
        self._leaves = leaves
        self.result = Rerun()
        self._outputs = self.result.outputs
        self._left: dict[tuple[int, str], Any] = {}
        self._bindings = setting.Bindings(_Gone)
        self._instead, self._stand_ins = instead, dict(instead)
        self._awaited: list[views.Awaited] = []
        self._last_writes: dict[int, Entry] = {}  # by the id of what they write into
        self._lasting = Lasting([])

    def play(self, entries: list[Entry], phases: Phases) -> Rerun:
        """Run all entries, told to be of these phases; raises whatever the script's code raises, and Refused.

        A backward that raises by itself, as it did before, or comes to a collective, for which other ranks are not
        there, is the end of the step, where its loss is bad already.
        """
        try:
            return self._play_all(entries, phases)
        finally:
            self._bindings.undo()

    def _play_all(self, entries: list[Entry], phases: Phases) -> Rerun:
        began, mended = time.perf_counter(), self.tracer.mended is not None
        others_wrote = self.tracer.others_wrote
        self._lasting = Lasting(entries, self._exposed, self.tracer.brought, mended=mended, others_wrote=others_wrote)
        self.result.shared = self._shared = Shared(entries, again=self._shares)
        with self.tracer.still():
            self._stand_in_for_written(entries)
            self._awaited = views.lay(self.tracer.gathered, entries, self._stand_ins)
            setting.put_in_first(entries)
        last = max((entry.micro_step for entry in entries if entry.kind == BACKWARD), default=0)
        for entry in entries:
            self.tracer.spots.base = Spot(None, None, entry.frames, phases[id(entry)], min(entry.micro_step, last))
            try:
                self._play(entry)
            except (Exception, Communicates) as error:
                if not self._may_end_with(entry, error):
                    raise
                break
        self.result.seconds = time.perf_counter() - began
        return self.result

    def _may_end_with(self, entry: Entry, error: Exception | Communicates) -> bool:
        if isinstance(error, Communicates) and self._in_company:
            return False
        if isinstance(error, Communicates) and self._alone and entry.kind == ROOT:
            bad = [one for one in numbers_within(error) if self.tracer.bad(one)]
            self.result.scalars += bad
            return bool(bad)
        if self._broken is not None and entry is self._broken.entry:
            self.result.gradients += self._broken.speaks(error, self.tracer.given)
            return True
        if entry.kind != BACKWARD or self.tracer.joint:
            return False
        return any(self.tracer.bad(loss) for loss, _ in self.result.losses)

    def made_again(self, tape: Tape, gradients: Iterable[Tensor]) -> list[Tensor]:
        """Return what gradients came out as that the script did not leave to ``backward`` but made by calls."""
        return [one for one in (self._anew(tape, gradient) for gradient in gradients) if one is not None]

    def put_anew(self, tape: Tape, buffers: Iterable[Tensor]) -> dict[int | None, Tensor]:
        """Return, by the storages of those before, the buffers that calls have put in the place of others again."""
        return {storage(one): again for one in buffers if (again := self._anew(tape, one)) is not None}

    def _anew(self, tape: Tape, tensor: Tensor) -> Tensor | None:
        entry, index = tape.maker(tensor) or (None, 0)
        outputs = self._outputs.get(id(entry), [])
        return outputs[index] if index < len(outputs) else None

    def _play(self, entry: Entry) -> None:
        if entry.kind == CALL and self._left_as_it_is(entry):
            return
        if (words := self._words(entry)) is None:
            self._take_what_it_left(entry)
            return
        args, kwargs, swapped = words
        with self.tracer.still():
            setting.put_in(entry, self._left)
            self._bind(entry, args)
        with under(entry.modes), nullcontext() if swapped is None else swapped.within(entry.function):
            if entry.kind == BACKWARD:
                self._play_backward(entry, args, kwargs)
                return
            before, function = self.tracer.ops, self._shared.played(entry.function, self.tracer.ops)
            function, args, kwargs = without_collectives(entry, function, args, kwargs)
            # What comes of numpy's numbers was made before.
            with self.tracer.still() if _of_numpy(args) else nullcontext(), in_place(forwards_of(entry)):
                output = function(*args, **kwargs)
            outputs = self._outputs[id(entry)] = (given_out if entry.kind == ROOT else tensors_in)(output)
            self._shared.ran(entry, before, self.tracer.ops)
            outputs += left_at(entry.sides)
            self._left |= {(id(names), name): value for names, values in entry.left for name, value in values.items()}
            self.result.scalars += [one for one in outputs if one.numel() == 1 and one.requires_grad]
            if entry.function is _grad:
                self.result.losses += [(root, entry.micro_step) for root in tensors_in(args[0])]
                self.result.gradients += outputs
            if entry.kind == CALL:
                outputs += shards_of(outputs)
                outputs += map(base_of, tensors_in(args[:1]) if entry.in_place else ())
            with self.tracer.still():
                self.result.doubts |= self._lasting.put_right(entry, outputs)

    def _bind(self, entry: Entry, args: Any) -> None:
        if isinstance(entry.function, OwnPart):
            self.tracer.lies(args[0], entry.function.was(args[0]))
        if entry.function is by_data:  # what ops were given of it is kept as it is
            self.tracer.kept.written([key_of(args[0])])
        doubts = len(self.result.stale)
        self.result.gaps += self._bindings.put(entry.contents, self._unpack)
        del self.result.stale[doubts:]  # the call may read another

    def _words(self, entry: Entry) -> tuple[Any, Any, Swapped | None] | None:
        """Return the arguments, None where one is gone that no gradient flows through: what needs it will refuse."""
        try:
            return self._unpack(entry.args), self._unpack(entry.kwargs), self._swapped(entry)
        except _Gone as gone:
            if (entry.kind == BACKWARD or entry.grad) and not (self._apart or self._lasting.is_earlier(entry)):
                raise Refused(str(gone)) from None
            self.result.gaps += 1
            return None

    def _swapped(self, entry: Entry) -> Swapped | None:
        """Return what the module is called with instead of its own; buffers are copies, for it may write into them."""
        if entry.swapped is None:
            return None
        with self.tracer.still():
            kept = {id(one): held.clone() for one, held in entry.buffers if not one.requires_grad}
        tensors = {
            name: kept[key] if key in kept else self._unpack(word)
            for key, (name, word) in zip(setting.swapped_in(entry), entry.swapped.tensors.items(), strict=True)
        }
        return entry.swapped._replace(tensors=tensors)

    def _play_backward(self, entry: Entry, args: Any, kwargs: Any) -> None:
        for root in tensors_in(args[0] if args else kwargs.get("tensors")):
            if not root.requires_grad:
                raise Refused("a loss was made by code that the tape did not see")
            self.result.losses.append((root, entry.micro_step))
            self.result.factors.append(factor_of(root))
        args, kwargs = (args, kwargs) if self._factor == 1.0 else divided(args, kwargs, self._factor)
        _backward(*args, **kwargs)
        with self.tracer.still():
            # Now, before the script divides or clips them: what an exchange between ranks would be given.
            self.result.largest_gradient = largest(leaf.grad for leaf in self._leaves if leaf.grad is not None)
            self.result.blank |= views.gathered_before(self._awaited, entry)
        self._shared.backward_ended(entry, self.tracer.ops)

    def _stand_in_for_written(self, entries: list[Entry]) -> None:
        # What the script wrote into in place is written into a copy, made from what it held before the first write.
        self._last_writes = {id(target): entry for entry, target in written_by(entries)}
        for entry in entries:
            if entry.before is not None:
                target, held = entry.before
                if id(target) not in self._stand_ins:
                    stand_in = self._stand_ins[id(target)] = held.clone().requires_grad_(target.requires_grad)
                    self.result.rewritten[storage(target)] = stand_in
                    self.result.originals[storage(stand_in)] = target

    def _take_what_it_left(self, entry: Entry) -> None:
        """What a write needs is gone: where nothing has written there since, what it left is there all the same."""
        if entry.kind != CALL or not entry.in_place or not entry.args:
            return
        targets = targets_of(entry, self._outputs)
        if not targets or not all(
            id(one) in self._stand_ins and self._last_writes[id(one)] is entry for one in targets
        ):
            return
        self.result.gaps -= 1
        with self.tracer.still():
            for target in targets:
                stand_in = self._stand_ins[id(target)]
                stand_in.detach().copy_(target.detach())
                self.result.unmade.append((entry, stand_in))

    def _left_as_it_is(self, entry: Entry) -> bool:
        """Whether an in-place write into a tensor from outside is not made again, its result being there already.

        Nor is one into a tensor that another stands in for.
        """
        if not entry.in_place or entry.grad or not entry.args:
            return False
        targets = targets_of(entry, self._outputs)
        if self._instead and any(id(one) in self._instead for one in targets):
            return True
        if entry.before is not None or not targets or any(one.requires_grad for one in targets):
            return False
        self.result.unmade += [(entry, one) for one in targets]
        return True

    def _unpack(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is Made or kind is Given:
            return self._again(thing)
        if kind is Rebuilt:
            return thing.make(self._unpack(thing.items))
        if kind is tuple or kind is list:
            return kind([self._unpack(item) for item in thing])
        if kind is dict:
            return {key: self._unpack(item) for key, item in thing.items()}
        return thing

    def _again(self, word: Made | Given) -> Tensor:
        if isinstance(word, Made):
            outputs, made = self._outputs.get(id(word.entry)), word.tensor()
            if self._instead and id(made) in self._instead:  # also where this step has made it
                return self._instead[id(made)]
            if outputs is not None and word.index < len(outputs):
                return outputs[word.index]
            if made is not None and word.version not in {None, version_of(made)} and id(made) not in self._stand_ins:
                if outputs is not None and getter(word.entry) == "grad":
                    raise _Gone("a gradient that the step used holds other numbers by now")
                self.result.stale.append(made)
            return self._outside(made)
        tensor = word.get()
        if tensor is not None and version_of(tensor) != word.version and id(tensor) not in self._stand_ins:
            self.result.stale.append(tensor)
            if word.written and all_there([tensor]):
                # The module writes into what it is given: this time into a copy.
                with self.tracer.still():
                    self._stand_ins[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return self._outside(tensor)

    def _outside(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            raise _Gone("a value that the step used is gone")
        stand_in = self._stand_ins.get(id(tensor))
        if stand_in is not None:
            return stand_in
        if not all_there([tensor]):
            raise _Gone("memory that the step used has been let go of")
        if tensor.requires_grad and not is_leaf(tensor):
            # Its graph was consumed by the real backward: gradients end here in the replay.
            self.result.cut = True
            with self.tracer.still():
                stand_in = self._stand_ins[id(tensor)] = tensor.detach().requires_grad_()
            return stand_in
        return tensor


def numbers_within(error: BaseException) -> list[Tensor]:
    """Return the single numbers with a graph that the functions held which ``error`` was raised in, outermost first."""
    held = (value for frame, _ in traceback.walk_tb(error.__traceback__) for value in frame.f_locals.values())
    return [one for one in held if isinstance(one, Tensor) and one.numel() == 1 and one.requires_grad]


def _of_numpy(args: Any) -> bool:
    """Whether a call takes what numpy made, an array or a list of them: torch makes a tensor of it, and no numbers."""
    first = args[0] if isinstance(args, tuple) and args else None
    some = first[:1] if isinstance(first, list | tuple) else [first]
    return any(type(one).__module__ == "numpy" for one in some)


BOUNDARIES.add(id(Player._play.__code__))
