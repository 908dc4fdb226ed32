"""What came of the weights in a step that is over, and lives on without a graph: a state that a loop carries (worker).

It is given to a model like a batch, and is none: how large it is, is the doing of the weights, and of what moves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import ref as reference

from torch import Tensor, nn
from torch._C import DisableTorchFunction

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.weakly import Staying, Weakly
from nandiag.runtime.tape.noted.consumed import GRAD, OUTPUT, Note, words_of
from nandiag.runtime.tape.packed.words import READ_GRADIENT, Given, Made

if TYPE_CHECKING:
    from nandiag.runtime.tape.entry import Entry

_FEW = 64
_ASKED = 64  # times, and a module is looked through again
_ROOT, _BACKWARD = "root", "backward"  # as entries are called, which have one of these


class Offspring:
    """Refers weakly to such tensors, also to those that a later step made of them."""

    def __init__(self) -> None:
        self._known: dict[int, Weakly] = {}
        self._most = _FEW
        self._weights: dict[int, _Weights] = {}

    def has(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` came of the weights, in an earlier step or by its graph; a weight does so itself."""
        if self._knows(tensor):
            return True
        return tensor.requires_grad and (isinstance(tensor, nn.Parameter) or not is_leaf(tensor))

    def _knows(self, tensor: Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor

    def leads_to(self, entries: Iterable[Entry], clean: set[int] | None = None) -> bool:
        """Whether any of ``entries`` was given some, or is a trained model's, or descends from such a call.

        Those that are not, nor what they descend from, are added to those known to be ``clean``.
        """
        waiting, seen = [*entries], set(clean or ())
        while waiting:
            entry = waiting.pop()
            if id(entry) in seen:
                continue
            seen.add(id(entry))
            # Of what a backward went through nothing is known any more but that it had a graph.
            if entry.grad and entry.kind != _BACKWARD and (entry.kind == _ROOT or entry.args is None):
                return True
            if any(self._gives(word) for word in entry.words if type(word) is Given):
                return True
            waiting += [word.entry for word in entry.words if type(word) is Made]
        if clean is not None:
            clean |= seen
        return False

    def _gives(self, word: Given) -> bool:
        tensor = word.get()
        return word.of_graph if tensor is None else self.has(tensor)

    def step_ends(self, made: Iterable[Made]) -> None:
        """A step is over in which calls ``made`` this: keep in mind what has no graph, and came of the weights."""
        clean: set[int] = set()
        with DisableTorchFunction():  # a class of tensors of the script's own sees no call of ours
            for one in made:
                tensor = one.tensor()
                # Gradients that are read are many, and no input.
                if tensor is None or tensor.requires_grad or one.entry.function == READ_GRADIENT:
                    continue
                if self._is_by_a_trained(one.entry) or self.leads_to((one.entry,), clean):
                    self.add(tensor)

    def were_noted(self, notes: Sequence[Note], made: Mapping[int, Made]) -> None:
        """The same, of calls that are only noted: without a graph there are few, or none.

        ``made``: what came of calls that are not, by ``id``.
        """
        here: set[int] = set()
        for note in notes:
            output = note[OUTPUT]
            if note[GRAD] or output is None or self._knows(output):
                continue
            tensors = [word for word in words_of(note) if isinstance(word, Tensor)]
            if self._descends(note[0], tensors, here) or (made and self.leads_to(_makers(tensors, made))):
                here.add(id(output))
                self.add(output)

    def _descends(self, entry: Entry | None, tensors: Sequence[Tensor], here: set[int]) -> bool:
        """Whether a call of such ``tensors`` is of a trained module, or was given what came of weights (``here``)."""
        keys = set(map(id, tensors))
        if (entry is not None and self._is_by_a_trained(entry)) or not here.isdisjoint(keys):
            return True
        if keys.isdisjoint(self._known) and True not in [one.requires_grad for one in tensors]:
            return False
        return any(map(self.has, tensors))

    def _is_by_a_trained(self, entry: Entry) -> bool:
        """Whether a call is one of a module that is trained, gradients being on or off just then."""
        if entry.kind != _ROOT or entry.grad:
            return entry.kind == _ROOT
        module = entry.function
        if not isinstance(module, nn.Module):
            return False
        known = self._weights.get(id(module))
        if known is None or not known.of(module):
            if len(self._weights) >= _FEW:
                self._weights.clear()
            known = self._weights[id(module)] = _Weights(module)
        return known.trained

    def add(self, tensor: Tensor) -> None:
        """Keep in mind that ``tensor`` came of the weights."""
        self._known[id(tensor)] = Weakly(tensor)
        if len(self._known) > self._most:
            self._known = {key: one for key, one in self._known.items() if one() is not None}
            self._most = max(_FEW, 2 * len(self._known))


def _makers(tensors: Sequence[Tensor], made: Mapping[int, Made]) -> list[Entry]:
    found = ((one, made.get(id(one))) for one in tensors)
    return [known.entry for one, known in found if known is not None and known.tensor() is one]


class _Weights:
    """The weights of a ``module``, looked up now and then: whether any of them is trained is asked in each step."""

    __slots__ = ("_left", "_weights", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module = reference(module)
        self._weights = [Staying(one) for one in module.parameters()]
        self._left = _ASKED

    def of(self, module: nn.Module) -> bool:
        """Whether these are the weights of ``module`` yet."""
        self._left -= 1
        return self.module() is module and self._left > 0

    @property
    def trained(self) -> bool:
        """Whether a gradient is gathered for any of them."""
        return True in [one.requires_grad for held in self._weights if (one := held()) is not None]
