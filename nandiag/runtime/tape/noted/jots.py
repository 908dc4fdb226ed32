"""What short steps did, jotted down as it was given, and put on the tape only when somebody reads that (worker).

Nearly every step ends well, and nobody ever asks what it did. Where a step takes long enough, packing its calls costs
nothing to speak of, and to hold their outputs would cost memory; where it is short it is the other way round. So there
arguments and outputs are held as they are until the step ends, a few calls at most, and then dropped unpacked; of calls
without gradients on tensors of a few numbers (the returns of an episode, added up one by one) some hundreds.

Where steps make very many calls (a loss that goes through time) some thousands of those that make a few numbers are
held, however long a step takes: packing them would take longer than they do. They are shelved while calls that they are
nothing to are put on the tape: what the loop does by hand to gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from nandiag.runtime.frames import trail
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.packing import HOOKS
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.noted.consumed import OUTPUT, RETAINS, Note, consumed, words_of
from nandiag.runtime.tape.noted.notes import (
    LARGEST,
    NONE,
    SMALL,
    VERSION,
    Versions,
    are_moderate,
    drawn,
    is_small,
    lightly,
    put,
    versions_in,
    versions_of,
)
from nandiag.runtime.tape.noted.pace import Pace
from nandiag.runtime.tape.noted.shelves import Shelf
from nandiag.runtime.tape.packed.descent import forget_consumed
from nandiag.runtime.tape.packed.nested import FLAT, Nested, in_line
from nandiag.runtime.tape.packed.words import Made
from nandiag.runtime.tape.state import Generators, any_autocast, modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

MOST, MOST_SMALL, MOST_DENSE = 24, 384, 4096
_TENSORS = frozenset({Tensor, Parameter})
_ROOT, _BACKWARD = "root", "backward"  # as entries are called, which have jots of their own
_grad_enabled, _any_autocast = torch.is_grad_enabled, any_autocast
_ALWAYS = -1  # no id


class Jots(Pace):
    """The calls of the present step that are not on the ``tape`` yet, while ``on``: steps are short and end well.

    While ``dense``, for there are very many of them, those that make a few numbers.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self.many: list[Note] = []
        self.most = MOST  # as many are noted without more ado
        self.shelves: list[Shelf] = []
        self._more = 0  # of what is noted, how many came behind the first few and are not small
        # What calls with a gradient have made that is in no other one so far, by id; and one that no call takes away.
        self._unused: set[int] = set()
        self._outputs: set[int] = set()
        self._large: set[int] = set()  # arguments that are not small, and are held by now
        self._given: set[int] = set()  # tensors that calls were given which are shelved

    def called(
        self,
        function: Any,
        words: tuple[Any, Any],
        output: Tensor | None,
        frame: FrameType | None,
        generators: Generators | None = None,
    ) -> bool:
        """Note a call with its output, or a backward, which has none; False where it must be put on the tape now.

        ``generators``: as they were before it, where it draws from them.
        """
        args, kwargs = words
        versions = versions_of(args, kwargs)
        own = function
        if versions is None and output is not None:
            nested = in_line(function, args, kwargs)
            function, args = nested or (function, args)
            kwargs, versions = {}, None if nested is None else versions_in(args)
        if versions is None:
            return False
        known = modes()
        grad = output is None or (known[0] and output.requires_grad)
        call = self._held(function, args, output, grad=grad)
        if call is None:
            return False
        function, args = call
        if self.dense:
            if not self._makes_room(args, output):
                return False
        elif len(self.many) >= self.most:
            self._one_of_many(args, output, grad=grad)
        if grad:
            self.use(args, kwargs, output)
        where, micro = trail(frame), self._tape.micro_step
        entry = None if generators is None else drawn(Entry(CALL, own, grad=grad, modes=known), where, generators)
        self.many.append((entry, function, grad, known, where, args, kwargs, versions, None, output, micro))
        return True

    def noted(self, function: Any, words: tuple[Any, Any], output: Tensor, frame: FrameType) -> bool:
        """Do what :meth:`called` does where that is little, for a plain call of torch; else do nothing."""
        args, kwargs = words
        many, unused, given = self.many, self._unused, (*args, *kwargs.values()) if kwargs else args
        if not self.on or self.dense or len(many) >= self.most or output.numel() > LARGEST or HOOKS or _any_autocast():
            return False
        if not FLAT.issuperset(map(type, given)):
            nested = in_line(function, args, kwargs)
            if nested is None:
                return False
            function, given = nested
            args, kwargs = given, None
        known = _grad_enabled()
        grad = known and output.requires_grad
        try:
            versions = list(map(getattr, given, VERSION, NONE))
        except RuntimeError:  # tensors made for inference have none
            return False
        if not grad or type(function) is Nested:
            call = self._held(function, args, output, grad=grad)
            if call is None:
                return False
            function, args = call
        if grad:
            unused.difference_update(map(id, given))
            unused.add(id(output))
        # Only tensors that are no DTensor: of the modes that of gradients is all that matters.
        many.append(
            (None, function, grad, known, trail(frame), args, kwargs, versions, None, output, self._tape.micro_step)
        )
        return True

    def clipped(self, function: Any, words: tuple[Any, Any], output: Tensor, frame: FrameType | None) -> bool:
        """Note a call that writes into the gradients of those that it is given, and nowhere else; False as above."""
        nested = in_line(function, *words)
        versions = None if nested is None else versions_of(nested[1], None)
        if not self.takes_writes or nested is None or versions is None:
            return False
        entry = Entry(CALL, function, grad=False, modes=modes())
        entry.in_place, entry.trail = True, trail(frame)
        whole, given = nested
        self.many.append((entry, whole, False, None, None, given, None, versions, None, output, self._tape.micro_step))
        return True

    @property
    def takes_writes(self) -> bool:
        """Whether there is room for a call that writes into what is not of this step."""
        return self.on and not (self.dense or self.shelves) and len(self.many) < MOST_SMALL

    def wrote(self, entry: Entry, args: Sequence[Any], kwargs: Any, versions: Versions) -> bool:
        """Note the write of ``entry``; False where that must be put on the tape now."""
        call = self._held(entry.function, args, args[0], grad=False)
        if call is None:
            return False
        micro, self.most = self._tape.micro_step, self.most + 1
        words = args[0], *call[1][1:]  # what was written into is what it returned, which is held in any case
        self.many.append((entry, call[0], False, None, None, words, kwargs, versions, None, args[0], micro))
        return True

    def use(self, args: Sequence[Any], kwargs: Any, output: Tensor | None) -> None:
        """A call with a gradient, or a backward, was given this."""
        given = {*map(id, args), *map(id, kwargs.values())} if kwargs else set(map(id, args))
        self._unused -= given
        if output is not None:
            self._unused.add(id(output))
        elif RETAINS in given:
            self._unused.add(_ALWAYS)

    def _one_of_many(self, words: Sequence[Any], output: Tensor | None, *, grad: bool) -> None:
        """Put what is noted on the tape where one more is too much."""
        if grad or output is None or not is_small(words, output):
            self._another()
        if len(self.many) >= MOST_SMALL:
            self.settle()

    def _holds_no_graph(self, word: Any) -> bool:
        """Whether to hold what a call makes of ``word`` keeps no graph alive but those of notes and of the newest root.

        What an evaluation without modules computes would live on by its loss.
        """
        if type(word) not in _TENSORS or not word.requires_grad or id(word) in self._outputs or word.is_leaf:
            return True
        known = self._tape._made.get(id(word))
        return known is not None and known.entry.kind == _ROOT and known.entry.step == self._tape.step

    def _makes_room(self, words: Sequence[Any], output: Tensor | None) -> bool:
        """Do the same where there are very many; False where the call is none of a few numbers in a long step."""
        if len(self.many) >= MOST_DENSE:
            self.settle()
        if output is None:
            return True
        if output.requires_grad and not all(map(self._holds_no_graph, words)):
            return False
        more = [id(one) for one in words if type(one) in _TENSORS and one.numel() > SMALL]
        if output.numel() > SMALL or (more and not self._large.issuperset(more)):
            if not self.on and (output.numel() > SMALL or not are_moderate(words)):
                return False
            self._another()
            self._large.update(more)
        self._outputs.add(id(output))
        return True

    def begun(self, entry: Entry, words: tuple[Any, Any]) -> bool:
        """Note that a root module is called; False where that must be put on the tape now."""
        versions = versions_of(*words)
        if versions is None or not (entry.grad or self._holds_little((*words[0], *words[1].values()))):
            return False
        if len(self.many) >= self.most:
            self._another()
        self.many.append((entry, None, entry.grad, None, None, *words, versions, None, None, self._tape.micro_step))
        return True

    def _another(self) -> None:
        """One more is to be noted that may hold some memory."""
        self._more += 1
        if self._more >= MOST:
            self.settle()

    def ended(self, entry: Entry, output: Any) -> bool:
        """The call of ``entry`` is over and has returned ``output``; False where that must be put on the tape now."""
        if not self.many or type(output) is not Tensor or output.numel() > LARGEST:
            return False
        known, *_, args, kwargs, versions, _, _, micro = self.many[-1]
        if known is not entry:
            return False
        after = versions_of(args, kwargs)
        if self.dense:
            self._outputs.add(id(output))
        if entry.grad:
            self.use(args, kwargs, output)
        self.many[-1] = (entry, None, entry.grad, None, None, args, kwargs, versions, after, output, micro)
        return True

    @property
    def every(self) -> list[Note]:
        """All that is noted, oldest first."""
        return [*chain.from_iterable(one.notes for one in self.shelves), *self.many] if self.shelves else self.many

    def bring(self, tensors: Iterable[Tensor]) -> None:
        """Somebody asks what made ``tensors``: put what is noted on the tape, where it may be that."""
        if self.dense and not self._leads_to(self._outputs, tensors):
            return
        newest = {id(note[OUTPUT]) for note in self.many}
        if self.shelves and not self._leads_to(self._outputs - newest, [*tensors, *self._tensors_given()]):
            self._settle_newest(newest)
        else:
            self.settle()

    def made(self, tensor: Tensor) -> bool:
        """Whether a call that is noted has returned ``tensor``."""
        return True in [note[OUTPUT] is tensor for note in self.every]

    def _settle_newest(self, outputs: set[int]) -> None:
        """Put on the tape what is not shelved, of which these are the ``outputs``: it needs nothing of what is."""
        many, self.many = self.many, []
        self._outputs -= outputs
        self._put_all(many)

    def make_way(self, tensors: Sequence[Tensor], *, writes: bool = False) -> None:
        """A call that is given ``tensors`` goes on the tape, behind what is noted; ``writes``: into them."""
        self.bring(tensors)
        # Until a backward has gone through it a graph may be large: once packed, it lives as long as the script has it.
        if self.many and self._tape.border != _BACKWARD:
            self.settle()
        if not (self.many or self.shelves):
            return
        given = set(map(id, self._tensors_given()))
        if writes and self._leads_to(self._given | given, tensors):
            self.settle()
        elif self.many:
            self._given |= given
            self.shelves.append(Shelf(self._tape, self.many))
            self.many = []

    def _tensors_given(self) -> Iterable[Tensor]:
        return [word for note in self.many for word in words_of(note) if type(word) in _TENSORS]

    @staticmethod
    def _leads_to(known: set[int], tensors: Iterable[Tensor]) -> bool:
        return any(id(one) in known or (one._is_view() and id(one._base) in known) for one in tensors)

    def settle(self) -> None:
        """Put all that was noted on the tape."""
        self._packed += len(self.every)
        many, shelves = self._taken()
        more = 0
        for shelf in shelves:
            with shelf.opened(more):
                self._put_all(shelf.notes)
                more = shelf.grown
        self._put_all(many)

    def _taken(self) -> tuple[list[Note], list[Shelf]]:
        """Return what was noted, and begin anew."""
        taken = self.many, self.shelves
        self.many, self.shelves, self._more, self.most = [], [], 0, MOST
        for known in (self._outputs, self._large, self._given, self._unused):
            known.clear()
        return taken

    def _put_all(self, notes: Sequence[Note]) -> None:
        now = self._tape.micro_step
        for note in notes:
            self._tape.micro_step = note[-1]
            put(self._tape, note)
        self._tape.micro_step = now

    def _held(
        self, function: Any, words: Sequence[Any], output: Tensor | None, *, grad: bool
    ) -> tuple[Any, Any] | None:
        """Return a call as it is to be noted, what is large by weak references; None where that would not do.

        Without gradients no graph is to be held that is not held already. What is large and was made by a call that is
        on the tape may be gone before this one is put there; in lists nothing large is looked for.
        """
        if grad:
            return (function, words) if type(function) is not Nested or are_moderate(words) else None
        if output is None or output.requires_grad:
            return None
        large = 0
        for word in words:
            if isinstance(word, Tensor):
                if word.requires_grad and not self._is_held(word):
                    return None
                large += word.numel() > LARGEST
        return (function, words) if not large else lightly(function, words, self._tape)

    def _holds_little(self, words: Sequence[Any]) -> bool:
        return are_moderate(words) and all(self._is_held(one) for one in words if getattr(one, "requires_grad", False))

    def _is_held(self, tensor: Tensor) -> bool:
        """Whether the graph that a tensor has is held already, or it has none."""
        return is_leaf(tensor) or (id(tensor) in self._outputs if self.dense else self.made(tensor))

    def step_passes(self, seconds: float) -> bool:
        """Do what :meth:`step_took` and :meth:`step_ends` do, where a step was as those before; else return False.

        Nothing is on the tape, calls were few, and a backward has left no graph of any.
        """
        if self._unused or self.shelves or not self.stays(seconds):
            return False
        self._tape.offspring.were_noted(self.many, {})
        self.many, self.most = [], MOST
        self._more = 0
        return True

    def step_ends(self, made: Mapping[int, Made]) -> None:
        """Drop what nobody has asked for, and nobody can any more; ``made``: what came of calls on the tape, by id.

        What leads to a graph that lives on is put there. Those calls lie before all that is noted. Of them, too, what a
        backward went through has no graph any more.
        """
        found = consumed(self.every)
        if found is None:
            self.settle()
            self.was_in_vain()
            return
        used, living = found
        for known in [made[key] for key in used & made.keys()]:
            if known.entry.grad and known.tensor() is not None:  # else that number is another's by now
                forget_consumed(known.entry)
        self._tape.offspring.were_noted(self.every, made)
        dropped = self._taken()
        self._put_all(living)
        del dropped  # what these were given is there until they have been put there
        self._in_vain = 0
