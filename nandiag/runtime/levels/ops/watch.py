"""``--level op``: every op is looked at as it runs, so that the origin of harm is known without a second run (worker).

What an op has written is looked at where it lies. Only ops with non-finite outputs are kept, with the ops that made
their inputs so: the way back from a harm is then walked as after a replay. On the CPU a look is known at once; on a
device it waits for a step border, the end of a backward or of a root call, or until very many wait.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.evidence.op import Outside, is_constant
from nandiag.runtime.guard import guarded
from nandiag.runtime.kernels.unmoded import unmoded
from nandiag.runtime.levels.ops.cured import cure, read_off
from nandiag.runtime.levels.ops.handed import Handed
from nandiag.runtime.levels.ops.marks import Marks
from nandiag.runtime.levels.ops.modes import restack
from nandiag.runtime.levels.ops.spots import LiveSpots
from nandiag.runtime.levels.ops.watched import ByItself, Watched, all_finite, foreign, kept_by, on_cpu, traits
from nandiag.runtime.look.extremes import Extremes, Look
from nandiag.runtime.memory.known.unwritten import hands_out, keeps_parts
from nandiag.runtime.memory.there import key_of
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.exchanges.carrier import Carriers
from nandiag.runtime.replay.trace.tracer import COLLECTIVES, Tracer
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tracebacks import pass_on

_MOST_WAITING = 4096
_MOST_WRITERS = 4096
_MOST_BYTES = 64 * 1024 * 1024
_MOST_KEPT = 256
_MANY = 4
_PROBE = "ops"
_NOTHING: dict[int, Look | None] = {}

Inside = tuple[weakref.ref[nn.Module] | None, str]  # a node is known for longer than its model may be there


class OpWatch(Tracer):
    """The live tracer of the training thread; ``on`` while its mode lies at the bottom of that thread's stack."""

    spots: LiveSpots

    def __init__(self) -> None:
        super().__init__({}, joint=True)
        self.spots = LiveSpots()
        self.on = False
        self.step = 0
        self.extremes = Extremes()
        self.marks = Marks()
        self.last_number: tuple[float, Watched | None] | None = None
        self._waiting: list[Watched] = []
        self._alive: dict[int, StorageWeakRef | ByItself] = {}
        self._unwritten: set[int] = set()
        self._handed = Handed()
        self.begin_step(0)

    # ------------------------------------------------------------------ on and off

    def switch_on(self) -> None:
        """See every op of this thread from now on, below any mode of the script's."""
        if not self.on:
            self.on = True
            restack(lambda modes: [self, *modes])

    def switch_off(self) -> None:
        """See no more."""
        if self.on:
            self.on = False
            restack(lambda modes: [mode for mode in modes if mode is not self])

    # ------------------------------------------------------------------ ops

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one op as it would have run, and look at it; an error of ours ends the watch and nothing else."""
        kwargs, run = kwargs or {}, unmoded(func)
        if self._still or RECORDER.is_dark(_PROBE):
            return run(*args, **kwargs)
        whose = self._foreign(func, types) if types else None
        if whose == "shadow":
            return func(*args, **kwargs)  # torch works out shapes: there are no values to look at
        if whose:
            return NotImplemented  # a subclass (DTensor) takes its op apart, and its local ops come by here
        self.ops += 1
        if func._schema.name.startswith(COLLECTIVES):
            op = self._sends(func, args, kwargs)
            output = func(*args, **kwargs)
            self._arrives(op, func, args, output)
            return output
        before = self._begins(func, args, kwargs)
        try:
            output = run(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if before is not None:
            self._ended(func, (args, kwargs), output, before)
        return output

    @guarded(_PROBE)
    def _foreign(self, func: Any, types: Any) -> str | None:
        """Tell whether an op is a subclass's or is about no values; None for one of plain tensors."""
        found = foreign(types)
        if found == "subclass":
            self.spots.note(func)  # it is this op's, whatever the subclass runs first
        return found

    @guarded(_PROBE)
    def _begins(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Look | None] | None:
        """Look at what an op is going to write over; None for one that writes nothing."""
        what = traits(func)
        self.spots.note(func)
        if what.view:
            return None
        return self._before(what.targets(args, kwargs)) if what.writes else _NOTHING

    @guarded(_PROBE)
    def _ended(self, func: Any, words: tuple[Any, Any], output: Any, before: dict[int, Look | None]) -> None:
        what = traits(func)
        targets = what.targets(*words) if what.writes else []
        written = [*targets, *(one for one in tensors_in(output) if id(one) not in before)]
        if what.may_copy:
            given = {key_of(one) for one in tensors_in(words)}
            written = [one for one in written if key_of(one) not in given]
        if what.brings:
            self._brought(written)
        elif what.empty:
            self._unwritten |= {key_of(tensor) for tensor in written}
            spot = self.spots.of(str(func))
            self._handed.out(written, spot, lambda: Watched(self.ops, func, spot, [], [], step=self.step))
        elif written:
            self._saw(func, words, written, before)
        elif what.name == "_local_scalar_dense" and isinstance(output, float):
            self.last_number = output, None if math.isfinite(output) else read_off(self._writer, words[0][0])

    def _brought(self, written: list[Tensor]) -> None:
        """Whatever lies in this memory came from outside."""
        for key in {key_of(tensor) for tensor in written}:
            self._unwritten.discard(key)
            self._handed.forget([key])
            self._drop(key)

    def _is_left(self, tensor: Tensor, maker: Watched | None, *, wrote: bool = False) -> None:
        """What is bad there, if anything, is what ``maker`` handed out; ``None`` where all of it was written since."""
        key, writer = key_of(tensor), self._writer.get(key_of(tensor))
        if maker is not None and writer is None:
            self._writer[key], self._alive[key] = maker, kept_by(tensor)
        elif wrote and maker is None and writer is not None and hands_out(writer):
            self._drop(key)

    def _before(self, targets: list[Tensor]) -> dict[int, Look | None]:
        if len(targets) > _MANY and on_cpu(targets[0]) and all_finite(targets):
            return dict.fromkeys(map(id, targets))
        return {id(target): self._look(target) for target in targets}

    def _saw(self, func: Any, words: tuple[Any, Any], written: list[Tensor], before: dict[int, Look | None]) -> None:
        if self._unwritten:
            self._unwritten -= {key_of(tensor) for tensor in written}
        for tensor in written if self._handed.any else ():
            self._is_left(tensor, self._handed.wrote(func, tensor), wrote=True)
        many = len(written) > _MANY and on_cpu(written[0]) and all_finite(written)
        made = [] if many else [look for look in map(self._look, written) if look is not None]
        if all(look.known and look.finite for look in made):
            if self._writer:
                self._clean(written, words)
            return
        op = self._watched(func, words, before)
        op.made = made
        op.results = [tensor.detach() for tensor in written]
        self._take(op, written)

    def _watched(self, func: Any, words: tuple[Any, Any], before: dict[int, Look | None]) -> Watched:
        op = Watched(self.ops, func, self.spots.of(str(func)), [], [], words=words, step=self.step)
        op.grad = torch.is_grad_enabled()
        # lift_fresh brings a Python number into a tensor: a constant, not something from outside.
        lifts = func._schema.name == "aten::lift_fresh"
        for tensor in [] if lifts else tensors_in((words[0], list(words[1].values()))):
            look = before[id(tensor)] if id(tensor) in before else self._look(tensor)
            if look is not None:
                op.looks.append(look)
                op.writers.append(self._writer.get(key_of(tensor)))
        return op

    def _take(self, op: Watched, written: list[Tensor]) -> None:
        """Keep an op that has, or may prove to have, written something that is not finite."""
        op.constant = is_constant(op)
        if op.known:
            self._link(op)
            if not op.bad and not op.collective:
                return
        else:
            op.forget_values()
            self._waiting.append(op)
        for tensor in written:
            key = key_of(tensor)
            self._writer[key] = op
            if key not in self._alive:
                self._alive[key] = kept_by(tensor)
        if len(self._waiting) >= _MOST_WAITING:
            self.read()

    def _link(self, op: Watched) -> None:
        """Now that its looks are known: what went in and came out, and from where."""
        op.read_looks()
        for look, stat, writer in zip(op.looks, op.inputs, op.writers, strict=True):
            if stat is None:
                continue
            if writer is not None and hands_out(writer) and not writer.outputs:
                if op.func._schema.is_mutable and not keeps_parts(op.func):
                    continue  # it writes over what is left there
                writer.outputs, writer.told = [stat], ((), (look.told(),))
            if writer is not None and (writer.collective or any(writer.outputs)):
                op.parents += [] if writer in op.parents else [writer]
            elif not op.collective:
                op.outside.append(self._outside(look))
        op.writers = []
        op.constant = op.constant and op.born
        self._keep_values(op)

    def _outside(self, look: Look) -> Outside:
        tensor = look.of()
        if tensor is None:
            return Outside(torch.empty(0), look.told(), None)
        return Outside(tensor, look.told(), self.spots.own_of(tensor))

    def _keep_values(self, op: Watched) -> None:
        """Hold on to the values of a possible origin until the step ends, within a budget."""
        size = op.bytes
        worth = (op.born or op.born_nan) and not op.constant and op.words is not None
        if worth and self._kept < _MOST_KEPT and self._bytes + size <= _MOST_BYTES:
            self._kept += 1
            self._bytes += size
        else:
            op.forget_values()

    def _look(self, tensor: Tensor) -> Look | None:
        maker = self._handed.reads(tensor) if self._handed.any else None
        self._is_left(tensor, maker)
        if maker is None and self._unwritten and key_of(tensor) in self._unwritten:
            return None  # memory that nobody has written yet
        return self.extremes.look(tensor)

    def _clean(self, written: list[Tensor], words: tuple[Any, Any]) -> None:
        """What is written whole and finite descends from nothing bad any more."""
        keys = {key_of(tensor) for tensor in written} & self._writer.keys()
        given = {key_of(tensor) for tensor in tensors_in((words[0], list(words[1].values())))}
        if any(map(torch.is_floating_point, written)):
            cure(self._writer[key] for key in given & self._writer.keys())
        for key in keys - given:
            self._drop(key)

    def _drop(self, key: int) -> None:
        self._writer.pop(key, None)
        self._alive.pop(key, None)

    @guarded(_PROBE)
    def _sends(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watched:
        op = self._watched(func, (args, kwargs), {})
        op.spot, op.collective = replace(op.spot, phase="collective"), True
        if all(on_cpu(tensor) for tensor in tensors_in(args)):
            op.carrier = self._carriers.of(func, [*args, *kwargs.values()])  # it reads how large they are
        return op

    @guarded(_PROBE)
    def _arrives(self, op: Watched | None, func: Any, args: tuple[Any, ...], output: Any) -> None:
        if op is None:
            return
        # What arrives is not there yet: its value is known where it is used.
        writes = func._schema.is_mutable or func._schema.name.startswith("c10d::")
        arrived = [*(tensors_in(args) if writes else []), *tensors_in(output)]
        self._unwritten -= {key_of(tensor) for tensor in arrived}
        self._handed.forget(map(key_of, arrived))
        self._take(op, arrived)
        if op.carrier is not None:
            self._collected = op
            self.sent += [op] if any(op.inputs) else []
        op.forget_values()

    # ------------------------------------------------------------------ borders

    def bad_ops(self) -> list[Watched]:
        """Return the ops whose bad values have not been overwritten since."""
        return [op for op in self._writer.values() if isinstance(op, Watched) and op.bad]

    def next_micro_step(self, micro_step: int) -> None:
        """What follows belongs to ``micro_step``."""
        self.spots.base = replace(self.spots.base, micro_step=micro_step)

    def read(self) -> None:
        """Bring what waits on devices to the host, and link the ops that proved bad."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self.extremes.read()
        for op in waiting:
            self._link(op)
        for key, one in list(self._writer.items()):
            if one is None or not (one.collective or any(one.outputs)):
                self._drop(key)

    def begin_step(self, step: int) -> None:
        """Forget all but who wrote the bad values that are still alive, and let go of the values themselves."""
        self.read()
        self._unwritten.clear()
        self._handed.let_go()
        self._collected, self._carriers = None, Carriers(live=True)
        self.sent.clear()
        self._kept = self._bytes = 0
        kept = [key for key, op in self._writer.items() if op and not op.collective and not self._alive[key].expired()]
        self._writer = {key: self._writer[key] for key in kept[-_MOST_WRITERS:]}
        self._alive = {key: self._alive[key] for key in self._writer}
        for op in self._writer.values():
            if isinstance(op, Watched):
                op.shorten()
        self.spots.forget()
        self.marks.clear(self.ops + 1)
        self.step = step
        self.spots.begins()
