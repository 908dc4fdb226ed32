"""The window: a TorchFunctionMode that tapes the few torch calls a script makes outside of modules (worker).

It is on the stack of modes only while the script's own loop code runs: never inside a root module, a backward, an
optimizer step or a compiled region. It lies below the script's modes, for ``with torch.device(...)`` pops the top one.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident as _ident
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from nandiag.runtime.births.beneath import Beneath
from nandiag.runtime.frames import trail
from nandiag.runtime.guard import disarm
from nandiag.runtime.kernels.engine import is_of_engine
from nandiag.runtime.leaves import unseen
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.memory.laid import laid_by
from nandiag.runtime.memory.later.handed_out import HandedOut
from nandiag.runtime.memory.later.moved import Laid, Moved
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.memory.weakly import Exposed
from nandiag.runtime.tape.calls.outputs import shards_of
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import CALL, ROOT, Entry
from nandiag.runtime.tape.loop.traits import COPIES, Traits, traits, traits_of
from nandiag.runtime.tape.noted.notes import LARGEST
from nandiag.runtime.tape.noted.parts import note_parts
from nandiag.runtime.tape.noted.writes import may_be_noted, note_write, was_written
from nandiag.runtime.tape.packed.descent import is_of_little
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import HANDS_ON, base_of, is_handed_on
from nandiag.runtime.tape.state import Generators, generators, modes
from nandiag.runtime.tracebacks import pass_on

_READS = frozenset({"item", "tolist", "__bool__", "__float__", "is_nonzero", "equal", "allclose"})
_ARRAYS = frozenset({"numpy", "__array__"})
_PLAIN = frozenset({"detach", "__get__"})
_SMALL, _SMALL_DATA = 1 << 14, 1024
_Kept = tuple[Generators | None, tuple[Tensor, Tensor] | None]
_NUMBERS = frozenset({float, bool, int})
_TENSORS = frozenset({Tensor, nn.Parameter})
_KINDS = (Tensor, tuple, list, float, int)
_MOST_NUMBERS = 8
_MOST_EXPOSED = 64

_OF_MODULES = os.path.join(os.path.dirname(nn.__file__), "modules", "")

_functorch = torch._C._functorch.peek_interpreter_stack
_stacked = torch._C._len_torch_function_stack


class Questions(Protocol):
    """Who hears what the script asks of its numbers, in which frame."""

    def of(self, tensor: Any, frame: Any) -> None:
        """It asks whether ``tensor`` is finite."""

    def read(self, tensor: Any, frame: Any) -> None:
        """It reads it as a number, which is not finite."""

    def answered(self, number: float | bool, frame: Any) -> None:  # noqa: FBT001 - as it is read
        """It reads a truth value, or a finite number, off a tensor."""


class Follower(Protocol):
    """Who follows what descends from bad numbers."""

    def begins(self, words: Any) -> bool:
        """A call is given ``words``; returns whether any of these descends from them."""

    def ended(self, words: Any, output: Any, *, descends: bool) -> None:
        """It has returned ``output``."""


class Window(Beneath):
    """Tapes calls while it is open; ``calls`` counts them, for the budget; once ``shut`` it opens no more.

    ``writes``: how often the loop wrote, where memory is ``trusted`` into any of that alone.
    ``asks``: how often the script asked something of numbers that no gradient goes through, outside of its forwards.
    ``numbers`` are those that the script read off tensors in this step and that are not finite, each with its tensor
    and what made that; ``stored`` is what is not finite of what it laid into memory that lives on, each with a key of
    that memory. What is ``exposed`` may have been written by others than torch since it was made. ``beside_in`` is the
    newest step in which a thread that is not taped made gradients; ``_makers`` are all that ever did.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape
        self.calls = self.writes = self.asks = 0
        self.beside_in = -1
        self._makers: set[int] = set()
        self.trusted: frozenset[int] = frozenset()
        self.numbers: deque[tuple[float, Tensor, Entry]] = deque(maxlen=_MOST_NUMBERS)
        self.stored: list[tuple[int, Tensor]] = []
        self.handed_out = HandedOut()
        self.moved = Moved(tape)
        self.exposed: deque[Exposed] = deque(maxlen=_MOST_EXPOSED)
        self.wrote: Callable[[Tensor, Any], object] | None = None
        self.refused: Callable[[BaseException, Any], object] | None = None
        self.asked: Questions | None = None
        self.follower: Follower | None = None

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call, then tape it; an error of ours goes dark, an error of the call is the script's."""
        if self._thread != _ident():  # left on the stack of a thread that is not taped any more
            return func(*args, **(kwargs or {}))
        self.calls += 1
        try:
            what = traits(func)
            careful = what.careful or (kwargs and "generator" in kwargs)
            kept = unseen(self._kept, what, args, kwargs) if careful else None
        except Exception as error:
            disarm("window", error)
            return func(*args, **(kwargs or {}))
        self.on, self._within = False, True
        follower = self.follower
        descends = None if follower is None else follower.begins((args, kwargs))
        try:
            output = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self._pass_on(error, (args, kwargs))
            raise
        finally:
            self.on, self._within = self._thread == _ident(), False
        if follower is not None:
            follower.ended((args, kwargs), output, descends=bool(descends))
        if what.of_form or (type(output) is Tensor and what.simple and self._is_noted(func, (args, kwargs), output)):
            return output
        # Also the named tuples of max, topk, eigh and the like; but a shape, which is a tuple too, holds no tensor.
        if what.mutates or what.gives_data or (isinstance(output, _KINDS) and type(output) is not torch.Size):
            self._take_it(types, (func, (args, kwargs), output, kept))
        return output

    def gradients_in(self, step: int) -> None:
        """The caller makes gradients in ``step``: what a thread does that is not taped is not run again."""
        here = _ident()
        beside = self.owner is not None and self.owner != here
        if (beside or here not in self._makers) and not is_of_engine():
            self._makers.add(here)
            if beside:
                self.beside_in = step

    def others_train(self) -> bool:
        """Whether another thread than this one has made gradients, and may do so at any time: it lives."""
        here = (_ident(),)
        if self._makers.issubset(here):
            return False
        for one in self._makers.difference(sys._current_frames()):
            self._makers.discard(one)
        return not self._makers.issubset(here)

    def _take_it(self, types: Any, words: tuple[Any, Any, Any, _Kept | None]) -> None:
        try:
            if self.on and _functorch() is None:
                if types:  # of the script's own, which would see each property that is asked for
                    with torch._C.DisableTorchFunctionSubclass():
                        self._take(*words)
                else:
                    self._take(*words)
        except Exception as error:
            disarm("window", error)

    def _is_noted(self, func: Any, words: tuple[Any, Any], output: Tensor) -> bool:
        try:
            return self.on and _functorch() is None and self.tape.jots.noted(func, words, output, sys._getframe(2))
        except Exception as error:
            disarm("window", error)
            return True

    def _read(self, number: float | bool, args: tuple[Any, ...], frame: Any) -> None:  # noqa: FBT001 - as it is read
        """The script reads a number off a tensor, which may go into a learning rate, say; or a truth value."""
        asked = self.asked
        if math.isfinite(number):
            if asked is not None:
                asked.answered(number, frame)
            return
        if asked is not None:
            asked.read(args[0] if args else None, frame)
        if len(self.numbers) == _MOST_NUMBERS:
            return
        maker = self.tape.maker(args[0]) if args and isinstance(args[0], Tensor) else None
        if maker is not None and is_of_little(maker[0]) and self.tape.hold(maker[0]):
            self.numbers.append((number, args[0], maker[0]))

    def _count_question(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and self.tape.border is not ROOT and not tensor.requires_grad:
            self.asks += tensor.is_floating_point() or tensor.dtype is torch.bool

    def _pass_on(self, error: BaseException, words: Any) -> None:
        pass_on(error)
        if self.refused is not None:
            self.refused(error, words)

    def _take(self, func: Any, words: tuple[Any, Any], output: Any, kept: _Kept | None) -> None:
        """Take a call as it is where it may be put on the tape later, else put it there."""
        frame, what = sys._getframe(3), traits(func)
        if what.gives_data:
            self._gave(words[0], kept, frame)
            return
        self._count_question(words[0][0] if what.name in _READS and words[0] else None)
        if type(output) in _NUMBERS:
            self._read(output, words[0], frame)
            return
        if what.asks and self.asked is not None:
            self._count_question(_asked_of(*words))
            self.asked.of(_asked_of(*words), frame)
        if self.handed_out.doubts and what.in_place:
            self.handed_out.wrote(_first(*words))
        if what.hands_out and isinstance(output, Tensor) and self._is_hollow(func, output, frame):
            return
        if self._note(what, (func, words, output, kept), frame):
            return
        taped = self.tape_call(func, words, output, frame, what)
        if kept is not None and taped is not None:
            taped.generators, taped.before = kept

    def _note(self, what: Traits, call: tuple[Any, tuple[Any, Any], Any, _Kept | None], frame: FrameType) -> bool:
        """Note a call that may be put on the tape later; returns whether that was done."""
        func, words, output, kept = call
        jots, (states, before) = self.tape.jots, (None, None) if kept is None else kept
        if type(output) not in _TENSORS:
            return what.simple and note_parts(self.tape, func, words, output, frame)
        if what.writes and output is next(iter(words[0]), None):
            if note_write(self.tape, func, words, frame, before):
                return True
            jots.make_way(words[0][:1], writes=True)
        if not (jots.on or jots.dense) or not what.plain or type(output) is not Tensor or output.numel() > LARGEST:
            return False
        return jots.called(func, words, output, frame, states)

    def _is_hollow(self, func: Any, output: Tensor, frame: FrameType) -> bool:
        """Whether memory is handed out that holds nothing: no mode sees ``set_`` fill it, as one is unpickled.

        Or that is a weight's of a module of torch's that is being built: the parameter is another tensor.
        """
        self.handed_out.out(func.__name__, output, self.tape.step)
        code = frame.f_code
        return not output.numel() or (code.co_name == "__init__" and code.co_filename.startswith(_OF_MODULES))

    def _kept(self, what: Traits, args: tuple[Any, ...], kwargs: Any) -> _Kept:
        jots = self.tape.jots
        if (
            what.moves
            and (jots.many or jots.shelves)
            and not (what.writes and args and may_be_noted(self.tape, args[0]))
        ):
            writes = what.in_place or not what.mutates
            jots.make_way(tensors_in(args[:1] if writes else args), writes=writes)
        if what.in_place:
            self.writes += not self.trusted or self._may_write_there(_first(args, kwargs))
        if what.gives_data:
            return None, self.moved.gives(args[0], args[1], sys._getframe(1))
        if what.exposes and args and isinstance(args[0], Tensor):
            self._count_question(args[0])
            self.handed_out.exposed(what.name, args[0], sys._getframe(3))
            by_numpy = trail(sys._getframe(3)) if what.name == "numpy" else ()
            self.exposed.append(Exposed(base_of(args[0]), by_numpy))
            self._hand_out(what.name, args, sys._getframe(3))
        own = kwargs.get("generator") if kwargs else None
        states = generators(full=False, private=[own] if own is not None else ()) if what.random or own else None
        return states, self._before(what, args, kwargs) if what.in_place else None

    def _hand_out(self, name: str, args: tuple[Any, ...], frame: Any) -> None:
        """What is handed to numpy is looked at there: a single number is read, for all that is known."""
        tensor = args[0]
        if name in _ARRAYS and tensor.numel() == 1 and tensor.is_cpu and tensor.is_floating_point():
            with quiet():
                number = tensor.item()
            self._read(number, args, frame)

    def _gave(self, args: tuple[Any, ...], kept: _Kept | None, frame: Any) -> None:
        """``target.data = value`` was done; where no gradient is gathered, a replay writes the value there."""
        target, value = args
        if target.requires_grad or not self.moved.is_alone(value):
            return
        if self.wrote is not None:
            with quiet():
                self.wrote(target, value)
        entry = self.tape_call(Laid(target), (args, {}), target, frame, traits(Tensor.copy_))
        if entry is not None and kept is not None:
            entry.before = kept[1]

    def _before(self, what: Traits, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, Tensor] | None:
        # A small tensor from outside that is written into, perhaps through a view: what it held is kept, so that the
        # write can be made again.
        target = _first(args, kwargs)
        if not isinstance(target, Tensor) or _functorch() is not None:  # within a transform there is nothing to read
            return None
        laid = laid_by(what.name, args, kwargs)
        with quiet():
            self.handed_out.writes(what.name, target, laid)
            if self.wrote is not None:
                self.wrote(target, laid)
            base = base_of(target)
            if base.requires_grad or base.numel() > _SMALL or self._is_made(base, what) or not all_there([base]):
                return None
            return base, base.clone()

    def _is_made(self, base: Tensor, what: Traits) -> bool:
        """Whether a call of this step has made, or filled, what is written into: then that is made again."""
        if was_written(self.tape, base):
            return True
        known = self.tape.maker(base)
        if known is None or known[0].step != self.tape.step:
            return False
        # A gradient that is read was made by no call; until the step's first backward it is what an earlier one left.
        return what.fills or self.tape.micro_step > 0 or known[0].name != "__get__"

    def _may_write_there(self, target: Any) -> bool:
        plain = type(target) in _TENSORS and target.layout is torch.strided
        return not plain or target.untyped_storage().data_ptr() in self.trusted

    def _written(self, target: Any) -> Sequence[Tensor]:
        """Return what is written into with ``target``, where a call made it: what uses it now needs the write."""
        if not isinstance(target, Tensor):
            return ()
        whole = base_of(target)
        maker = self.tape.maker(whole)
        # A gradient is read anew each time, from where it lies.
        return () if maker is None or maker[0].args is None or maker[0].name == "__get__" else (whole,)

    def _is_given(self, what: Traits, func: Any, words: tuple[Any, Any], output: Any) -> bool:
        """Whether the tensor of a call that takes memory or data from elsewhere is to be taken as it is."""
        if what.name in _PLAIN:
            return isinstance(output, Tensor) and self.tape.is_carried(func, words[0], output)
        if what.remakes:
            for tensor in tensors_in([*words[0][:1], *(words[1] or {}).values()]):
                self.tape.unmake(tensor)
            return True
        return any(one.numel() > _SMALL_DATA for one in tensors_in(output))  # else numpy's memory would be kept with it

    def tape_call(
        self, func: Any, words: tuple[Any, Any], output: Any, frame: Any, what: Traits | None = None
    ) -> Entry | None:
        """Put one call and what it returned on the tape; ``frame`` is where the walk to the user's line starts."""
        args, kwargs = words
        what = traits_of(func) if what is None else what
        if (what.remakes or what.from_data or what.name in _PLAIN) and self._is_given(what, func, words, output):
            return None
        outputs = [output] if isinstance(output, Tensor) else tensors_in(output)
        if not outputs and not what.mutates:
            return None
        known = modes()
        entry = Entry(CALL, func, grad=known[0] and _has_gradient(what, args, outputs), modes=known)
        if what.in_place:
            entry.in_place = True
        entry.trail = trail(frame)
        if what.name == "__get__" and self.tape.knows(outputs):
            self.tape.jots.make_way(outputs, writes=True)  # what was made of it was not made of what it is by now
        # The memo that a copy is given has the copy in it by now, as the script goes on to write into it.
        self.tape.add(entry, (args[0], {}) if what.name == "__deepcopy__" else args, kwargs)
        if what.in_place and not entry.grad:
            self.tape.hold_update(entry, args)
        if what.name not in HANDS_ON or not is_handed_on(output, args):
            written = self._written(_first(args, kwargs)) if what.in_place else ()
            self.tape.made(entry, [*outputs, *shards_of(outputs), *written])
        if not entry.grad and entry.name in COPIES and isinstance(output, Tensor) and output.layout is torch.strided:
            self.tape.copied(entry, output)
        return entry


def _first(args: tuple[Any, ...], kwargs: Any) -> Any:
    """Return what a call writes into, which a library may hand on by its name."""
    return args[0] if args else next(iter((kwargs or {}).values()), None)


def _asked_of(args: tuple[Any, ...], kwargs: Any) -> Any:
    """Return what a question is of; of a comparison that of a tensor with itself (``x != x``), or of one with a number.

    NaN is neither below a bound nor above it, and Inf is above each.
    """
    first = args[0] if args else (kwargs or {}).get("input")
    if len(args) < 2 or first is args[1]:
        return first
    return first if type(args[1]) in _NUMBERS and isinstance(first, Tensor) and first.numel() == 1 else None


def _has_gradient(what: Traits, args: tuple[Any, ...], outputs: Sequence[Tensor]) -> bool:
    """Whether a gradient flows through a call, or it sets one."""
    if outputs and outputs[0].requires_grad:
        return True
    if what.mutates and not what.in_place:
        return True
    touched = outputs if outputs or not what.in_place else tensors_in(args[:1])
    return True in [tensor.requires_grad for tensor in touched]
