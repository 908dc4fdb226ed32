"""The tape: what the step did outside of what autograd keeps, by reference, so that it can be run again (worker).

Strong references go only to what the step holds anyway. A value made by an earlier entry is kept as a :class:`Made`,
to be made again; of what ran without gradients even the arguments are weak, so that an evaluation loop keeps nothing.
Only what is small, and was given to a call outside of modules, is held for as long as the step takes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref as reference

from torch import Tensor, strided
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.leaves import BUILT_IN, is_leaf, unseen
from nandiag.runtime.memory.later.offspring import Offspring
from nandiag.runtime.tape.entry import BACKWARD, CALL, ROOT, Entry
from nandiag.runtime.tape.noted.jots import Jots
from nandiag.runtime.tape.packed.carried import Carried
from nandiag.runtime.tape.packed.descent import (
    ancestors,
    forget_consumed,
    lasts,
    part,
    part_words,
    unheld,
    unsettled,
)
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import PLAIN, READ_GRADIENT, Given, Made, Rebuilt, version_of

MOST_ENTRIES = 4096
MOST_BYTES = 64 * 1024 * 1024
_MOST_LOOSE = 512
_ENTRIES_A_ROOT, _FEW_ROOTS = 8, 8
_FEW_MADE = 64
_FEW_ENTRIES = 256
_FEW_BYTES = 16 * 1024 * 1024
# The gradient, and what a line makes of it on the way to the weight.
_PER_UPDATE = 4


class Tape:
    """The entries since the last optimizer step, and who made which live tensor.

    ``shortened``: calls of modules with gradients were taken off in this step.
    """

    def __init__(self) -> None:
        self.jots = Jots(self)
        self._entries: list[Entry] = []
        self.border: str | None = None  # the newest of root calls and backward calls in this step
        self.loose: deque[Entry] = deque(maxlen=_MOST_LOOSE)
        self.overflow = self.shortened = False
        self._made: dict[int, Made] = {}
        self._most_made = _FEW_MADE
        self._copies: dict[int, tuple[StorageWeakRef, Entry]] = {}
        self.carried = Carried()
        self.offspring = Offspring()
        self._words: list[Made | Given] = []
        self._number = self._cleared = 0
        self._roots, self._most_roots = 0, _FEW_ROOTS
        self._most_entries, self._most_bytes = _FEW_ENTRIES, _FEW_BYTES
        self._first_root = 0
        self.step = self.micro_step = 0
        self.bytes = self._updates = 0

    @property
    def entries(self) -> list[Entry]:
        """The entries of this step, oldest first."""
        if self.jots.many or self.jots.shelves:
            self.jots.settle()
        return self._entries

    @entries.setter
    def entries(self, entries: list[Entry]) -> None:
        self._entries = entries

    def add(self, entry: Entry, args: Any, kwargs: Any) -> None:
        """Put an entry on the tape with its arguments packed."""
        if self.jots.many or self.jots.shelves:
            self.jots.make_way(tensors_in((args, kwargs)))
        self._number = entry.number = self._number + 1
        if entry.kind is ROOT:
            self._count_root()
            self._first_root = self._first_root or entry.number
        entry.step, entry.micro_step = self.step, self.micro_step
        entry.words = self._words = []
        self.carried.on = entry.kind is CALL and not entry.in_place
        grad = entry.grad
        entry.args = tuple(self._each(args, grad))
        if kwargs:
            entry.kwargs = dict(zip(kwargs, self._each(kwargs.values(), grad), strict=True))
        entries = self._entries
        if self.bytes > self._most_bytes or len(entries) >= self._most_entries:
            self._thin(entry)
            entries = self._entries
        if not grad and not entry.in_place:
            self.loose.append(entry)
        elif len(entries) < MOST_ENTRIES:
            entries.append(entry)
        else:
            self.overflow = True

    def next_number(self) -> int:
        """Return a number for what is not on the tape itself, and stands behind all that is."""
        self.jots.settle()
        self._number += 1
        return self._number

    @property
    def reached(self) -> int:
        """The number that calls have come to; those that are noted are counted, and need not be put on the tape."""
        return self._number + len(self.jots.many)

    def _count_root(self) -> None:
        self._roots += 1
        if self._roots > self._most_roots:
            self._prune()
            self._roots = sum(entry.kind == ROOT for entry in self.entries)
            # To go through all that is kept takes as long as it is: no more than a little of it for each root.
            self._most_roots = max(_FEW_ROOTS, 2 * self._roots, len(self._entries) // _ENTRIES_A_ROOT)

    def _thin(self, newest: Entry) -> None:
        """Much is kept: an evaluation by functions alone, gradients left on, may be what there is so much of."""
        self._prune()
        kept = sum(word.bytes for entry in (*self.entries, newest) for word in entry.words if type(word) is Given)
        self.bytes = min(self.bytes, kept)
        self._most_bytes = max(_FEW_BYTES, 2 * self.bytes)
        self._most_entries = max(_FEW_ENTRIES, 2 * len(self.entries))

    def _prune(self) -> None:
        """Let go of calls whose outputs are gone and went nowhere: an evaluation, a rollout with gradients left on."""
        every = (*self.entries, *self.loose)
        self._drop_gone()
        alive = {id(made.entry) for made in self._made.copy().values()}
        kept = [entry for entry in every if entry.kind == BACKWARD or entry.mutates or id(entry) in alive]
        needed = {id(entry) for entry in ancestors(kept)}
        self.shortened |= any(one.kind is ROOT and id(one) not in needed for one in self.entries)
        self.entries = [entry for entry in self.entries if id(entry) in needed]
        self.loose = deque((entry for entry in self.loose if id(entry) in needed), _MOST_LOOSE)

    def made(self, entry: Entry, outputs: Sequence[Tensor]) -> None:
        """Remember which tensors ``entry`` returned."""
        made = self._made
        for index, tensor in enumerate(outputs):
            made[id(tensor)] = Made(entry, index, reference(tensor))
        if len(made) > self._most_made:
            self._drop_gone()
            self._most_made = max(_FEW_MADE, 2 * len(self._made))

    def _drop_gone(self) -> None:
        """Forget of tensors that are gone, and of calls that will not be made again, who made what."""
        self._made = {
            key: made
            for key, made in self._made.copy().items()  # a thread that was taped until now may be adding to it
            if made.entry.args is not None and made.tensor() is not None
        }  # fmt: skip

    def living(self) -> list[tuple[Entry, Tensor]]:
        """Return what calls have made that is there yet, each with its call."""
        self.jots.settle()
        return [(made.entry, tensor) for made in self._made.copy().values() if (tensor := made.tensor()) is not None]

    def knows(self, tensors: Iterable[Tensor]) -> bool:
        """Whether a call that is on the tape by now has made one of ``tensors``."""
        return not self._made.keys().isdisjoint(map(id, tensors))

    def copied(self, entry: Entry, copy: Tensor) -> None:
        """Remember by its memory what a call copied without gradients: a parameter may be made of it."""
        memory = copy.untyped_storage()
        self._copies[memory._cdata] = (StorageWeakRef(memory), entry)

    def copier(self, memory: int | None) -> Entry | None:
        """Return the entry of this step that made the ``memory``, a storage, as a copy, None where none did."""
        known = self._copies.get(memory or 0)
        return None if known is None or known[0].expired() or known[1].args is None else known[1]

    def unmake(self, tensor: Tensor) -> None:
        """Take ``tensor`` as it is from now on: it was given other memory than the call that made it gave it."""
        if self.jots.many or self.jots.shelves:
            self.jots.bring((tensor,))
        self._made.pop(id(tensor), None)

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Have nothing refer to ``tensors`` any more: what they hold is about to be that of others."""
        self.jots.settle()  # notes hold what they were given, and what came of it
        copiers = [entry for _, entry in self._copies.copy().values()]
        part((*self._entries, *self.loose, *copiers), self._made, tensors)
        parted = set(map(id, tensors))
        part_words(self._words, parted)  # those of the newest call, which may be off the tape by now
        self.carried.let_go(parted)

    def maker(self, tensor: Tensor) -> tuple[Entry, int] | None:
        """Return the entry that made ``tensor`` and the index among its outputs, None when it is not on the tape."""
        if (self.jots.many or self.jots.shelves) and self.jots.made(tensor):
            self.jots.bring((tensor,))
        return self.maker_of_gone(id(tensor), reference(tensor))

    def is_carried(self, function: Any, args: Sequence[Any], plain: Tensor) -> bool:
        """Whether a call returned, without its graph, what an earlier step has made: it is taken as it is, then.

        A loop that carries a state gives it up for what it makes of it, and what is gone cannot be taken apart again.
        """
        whole = args[0] if args else None
        if function == READ_GRADIENT or not isinstance(whole, Tensor) or not whole.requires_grad or is_leaf(whole):
            return False
        known = self.maker(whole)
        if (known is not None and known[0].args is not None) or plain.requires_grad:
            return False
        self.offspring.add(plain)
        return True

    def maker_of_gone(self, number: int, tensor: Callable[[], Tensor | None]) -> tuple[Entry, int] | None:
        """As :meth:`maker`, of one that may be gone: by the ``id`` that it had, and a weak reference made then."""
        known = self._made.get(number)
        # All weak references to one object are the same one, for as long as anybody has it.
        return (known.entry, known.index) if known is not None and known.tensor is tensor else None

    def pack(self, thing: Any, strong: bool) -> Any:  # noqa: FBT001 - called for each word of each taped call
        """Replace tensors in nested tuples, lists and dicts by what they can be had from again."""
        if isinstance(thing, Tensor):
            word = self._word(thing, strong) if type(thing) in BUILT_IN else unseen(self._word, thing, strong)
            self._words.append(word)
            return word
        kind = type(thing)
        return thing if kind in PLAIN else self._pack_items(thing, kind, strong)

    def _each(self, things: Iterable[Any], strong: bool) -> list[Any]:  # noqa: FBT001
        """Do what :meth:`pack` does for each of some things; every taped call comes by here."""
        pack = self.pack
        return [thing if type(thing) in PLAIN else pack(thing, strong) for thing in things]

    def _pack_items(self, thing: Any, kind: type, strong: bool) -> Any:  # noqa: FBT001
        if kind is tuple or kind is list:
            return kind(self._each(thing, strong))
        if kind is dict:
            return dict(zip(thing, self._each(thing.values(), strong), strict=True))
        if hasattr(kind, "_make") and isinstance(thing, tuple):
            return Rebuilt(kind, self._each(thing, strong))
        if isinstance(thing, dict) and (hasattr(kind, "__dataclass_fields__") or isinstance(thing, OrderedDict)):
            return Rebuilt(kind, dict(zip(thing, self._each(thing.values(), strong), strict=True)))
        return thing

    def _word(self, tensor: Tensor, strong: bool) -> Made | Given:  # noqa: FBT001
        known = self._made.get(id(tensor))
        if known is not None and known.tensor() is tensor and self._again(known.entry, tensor, strong):
            return known if strong else Made(known.entry, known.index, reference(tensor), version_of(tensor))
        if not strong:
            self.carried.hold(tensor)
        elif not tensor.requires_grad:
            self.bytes += tensor.nbytes if tensor.layout is strided else tensor.numel()
        return Given(tensor, strong)

    def unfinished(self) -> bool:
        """Whether a forward was made, with gradients on, that no backward has followed yet."""
        last = max((entry.number for entry in self.entries if entry.kind == BACKWARD), default=0)
        return any(entry.kind == ROOT and entry.grad and entry.number > last for entry in self.entries)

    def bound(self) -> None:
        """After a backward: where the micro-batches so far are large, keep only what the script itself still holds."""
        if self.bytes <= MOST_BYTES:
            return
        self.bytes = 0
        for word in (word for entry in self.entries for word in entry.words if type(word) is Given):
            tensor = word.get()
            if tensor is not None and not tensor.requires_grad:
                word.release()
        for entry in (*self.entries, *self.loose):
            entry.settled = False

    def _again(self, maker: Entry, tensor: Tensor, strong: bool) -> bool:  # noqa: FBT001
        # A leaf that gradients gather in is trained, perhaps, where it was there before the first call of a module: it
        # is taken as it is. What an earlier step made without gradients is a plain value by now: making it again would
        # chain for ever.
        if maker.grad and maker.step == self.step and maker.args is not None and not is_leaf(tensor):
            return True  # by far the most common of the cases below
        if is_leaf(tensor) and tensor.requires_grad:
            within = self.step > 0 or 0 < self._first_root < maker.number
            return within and maker.step == self.step and (not strong or self.hold(maker))
        if not strong:
            return maker.step == self.step and maker.args is not None
        return (maker.step == self.step or maker.grad) and self.hold(maker)

    def clear(self, step: int) -> None:
        """Begin a new step. Entries whose outputs live on with their graph (a GAN's fake batch) stay reachable."""
        if self.jots.many or self.jots.shelves:
            self.jots.step_ends(self._made)
        if self._entries or self.loose or self._made:
            self._let_go()
        self._copies.clear()
        self.carried.clear()
        self._cleared = self._number
        self._roots, self._most_roots = 0, _FEW_ROOTS
        self._most_entries, self._most_bytes = _FEW_ENTRIES, _FEW_BYTES
        self.overflow, self.border, self.shortened = False, None, False
        self.step = step
        self.bytes = self._updates = 0

    def _let_go(self) -> None:
        # Taken off at once: a thread that was taped until now may be in the midst of putting a call there.
        entries, loose, made = self.entries, self.loose, self._made.copy()
        self._entries, self.loose, self._made, self._words = [], deque(maxlen=_MOST_LOOSE), {}, []
        self.offspring.step_ends(made.values())
        for entry in loose:
            if not entry.held:  # else a graph that lives on may refer to it, and nothing else does: a GAN's noise
                entry.forget()
        for entry in entries:
            if not (entry.grad or lasts(entry)):
                entry.forget()
            elif entry.kind is BACKWARD and entry.args is not None and not entry.retains:
                forget_consumed(entry)
        self._made = {key: one for key, one in made.items() if one.entry.grad}  # all else is plain now
        self._drop_gone()

    def hold(self, maker: Entry) -> bool:
        """Keep what ``maker`` needs to be run again, now that something depends on it; False where that is gone.

        What ran without gradients keeps its arguments weakly until then: most of it never matters.
        """
        if not maker.grad and not maker.held:
            for entry in sorted(unheld(maker), key=lambda one: one.number):
                entry.held = entry.args is not None and all(self._hold_word(word) for word in entry.words)
        return maker.args is not None if maker.grad else maker.held

    @property
    def writes_weights(self) -> bool:
        """Whether the script itself wrote into a weight in this step."""
        return self._updates > 0

    def hold_update(self, entry: Entry, args: tuple[Any, ...]) -> None:
        """Keep what goes into a script's own write into a weight, where that is little, until the step is over.

        The weight is seen bad only when the gradients, and all that was made of them, are gone.
        """
        target = args[0] if args else None
        if not isinstance(target, Tensor) or not (is_leaf(target) and target.requires_grad):
            return
        if not any(type(word) is Made for word in entry.words):
            return  # what is only copied in, from a file, was made by no line of this step
        self._updates += _PER_UPDATE * (target.nbytes if target.layout is strided else target.numel())
        if self._updates > _FEW_BYTES:
            return
        for one in unsettled(entry):
            for word in one.words:
                # What is read off another tensor (a gradient) is another one when it is read again.
                if type(word) is Given or (type(word) is Made and word.entry.name == "__get__"):
                    word.hold()

    def _hold_word(self, word: Made | Given) -> bool:
        if type(word) is Made:
            maker = word.entry
            # A value that descends from another step's weights (a carried state) would not come out the same.
            again = maker.step == self.step and (maker.args is not None if maker.grad else maker.held)
            return again or word.hold()
        return word.hold() if type(word) is Given else True

    def cut(self, mark: int) -> None:
        """Take the entries before ``mark`` off: nothing that follows descends from them."""
        self.shortened |= any(one.kind is ROOT for one in self.entries[:mark])
        del self.entries[:mark]

    def whole(
        self, wanted: Iterable[Tensor] = (), without: Sequence[Entry] = (), also: Iterable[Entry] = ()
    ) -> list[Entry]:
        """Return the step's entries but ``without``, those ``also``, and what made ``wanted``, ancestors and all."""
        makers = [known[0] for known in map(self.maker, wanted) if known is not None and known[0].args is not None]
        makers += also
        left_out = {id(entry): entry for entry in without}
        kept = [entry for entry in (*self.entries, *makers) if id(entry) not in left_out]
        found = (entry for entry in ancestors(kept, left_out) if id(entry) not in left_out)
        return sorted(found, key=lambda entry: entry.number)
