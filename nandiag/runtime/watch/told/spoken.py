"""What an error that ends the script speaks of, where its own words are of NaN or infinities (worker).

``torch.multinomial``, the checks of a distribution's arguments, linear algebra and many a script's own assertion refuse
what is not finite: no loss is ever made of it then, and no border reached.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.look.finite import fact, is_bad, quiet
from nandiag.runtime.replay.case import Broken
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.watch.told.meant import Meant, meant

_NOUNS = r"(?:values?|numbers?|weights?|loss(?:es)?|grad\w*|norms?|outputs?|inputs?|entry|entries|elements?)"
_WORDS = re.compile(
    r"\b(nans?|infs?|infinity|infinities|non-?finite|not finite|isfinite|isnan"
    rf"|infinite {_NOUNS}|{_NOUNS} (?:is|are|was|were|became) infinite)\b",
    re.IGNORECASE,
)
# What such an error is never of: it may well name a file, a key or a word of a call that is spelt so.
_OTHER = (
    LookupError, OSError, AttributeError, ImportError, NameError, TypeError, NotImplementedError, StopIteration,
    SyntaxError, MemoryError,
)  # fmt: skip
_MOST_FRAMES, _MOST, _MOST_SIGNS, _INFINITY, _MASK = 32, 8, 200, 1, 2
# Who answers this by a smaller batch needs the memory of the larger one.
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|alloc", re.IGNORECASE)
# What torch, numpy and scipy say of NaN without its name: a range it is out of, a matrix that no factor is found of.
_REFUSALS = re.compile(
    r"between 0 and 1|probability entry < 0|sum of probabilities <= 0"
    r"|>= ?0 && .{1,9}<= ?1|must be in \[0, 1\]|positive.?(?:semi)?.?definite|is singular"
    r"|did not converge|failed to converge|invalid numeric entries|satisfy the constraint",
    re.IGNORECASE,
)
_FLOATS, _LARGEST = frozenset({"float16", "float32", "float64"}), 1 << 20
_NAN_AS_INTEGER = (str(-(1 << 63)), str(-(1 << 31)))

_Held: TypeAlias = Iterator[tuple[float, list[Tensor]]]
_Local: TypeAlias = Iterator[tuple[str, Tensor]]
_Values: TypeAlias = Callable[[FrameType], _Local]


class Refusal:
    """What the newest call that refused numbers was given: an argument without a name is gone when the script ends.

    No other call's arguments are kept: the memory of one that found none may be needed. Nor are these when a step is
    over: the script has answered that error itself, and another one may be given its ``id``.
    """

    def __init__(self) -> None:
        self._error = 0
        self._given: list[Tensor] = []
        self._call: tuple[Entry, str] | None = None

    def keep(self, error: BaseException, words: Any) -> None:
        """Keep the tensors among the ``words`` of a call that raised ``error``, if it speaks of numbers."""
        self._error, self._given = (id(error), tensors_in(words)[:_MOST]) if is_of_numbers(error) else (0, [])

    def keep_call(self, entry: Entry, error: BaseException) -> bool:
        """Keep the call of a root module that raised ``error``; False, and nothing, for one that is of no numbers."""
        if not isinstance(error, Exception) or isinstance(error, _OTHER) or _NO_MEMORY.search(_said(error)):
            return False
        self._call = entry, _sign(error)
        return True

    def broken(self, error: BaseException) -> Broken | None:
        """Return the call that raised ``error``, or what is behind it, if it was one of a root module."""
        if self._call is None:
            return None
        entry, sign = self._call
        return Broken(entry, meant_by) if any(_sign(one) == sign for one in _behind(error)) else None

    def step_ends(self) -> None:
        """A step is over: nothing is kept."""
        self._call = None
        if self._error:
            self._error, self._given = 0, []

    def kept(self, error: BaseException) -> list[Tensor]:
        """Return the tensors that the call was given that raised ``error``, bad or not."""
        return self._given if id(error) == self._error else []

    def given(self, error: BaseException) -> tuple[Tensor, ...]:
        """Return what is not finite among what the call was given that raised ``error``; NaN goes before infinities."""
        with quiet(), torch.no_grad():
            ranked = [(one, _rank(one)) for one in self.kept(error)]
        least = min((rank for _, rank in ranked), default=math.inf)
        return tuple(one for one, rank in ranked if rank == least < math.inf)


def _sign(error: BaseException) -> str:
    """Return what an error is told from others by; to hold it would hold all frames, and what lies in them."""
    return f"{id(error)} {type(error).__name__}: {_said(error)[:_MOST_SIGNS]}"


def _said(error: BaseException) -> str:
    """Return the words that an error was raised with; what else it carries (a tensor, say) is not printed for that."""
    return " ".join(one for one in error.args if type(one) is str)


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it was raised for, or behind."""
    found: BaseException | None = error
    for _ in range(_MOST):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def spoken_of(error: BaseException) -> tuple[Tensor, ...]:
    """Return the tensors that are not finite in the innermost frame of ``error`` that means any, the worst kind alone.

    Empty where the error is not of such numbers, nor one that it was raised ``from``. NaN goes before +Inf, and that
    before -Inf, which may be a mask, and is none only where the very call that raised was given it. Where no word of
    the error is of them, NaN alone counts, and only where the text of the script shows that its value was asked for.
    """
    found, cause = _spoken_of(error, _tensors), error.__cause__
    return found or (() if cause is None or cause is error else _spoken_of(cause, _tensors))


def arrays_of(error: BaseException) -> tuple[Tensor, ...]:
    """Return what numpy's arrays held, as :func:`spoken_of` does what tensors hold, as tensors of float64."""
    return _spoken_of(error, _arrays)


def meant_by(error: BaseException, given: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return what ``error`` speaks of: where it is of numbers and names none, what the newest op was ``given``."""
    behind = (error, error.__cause__)
    return spoken_of(error) or (given if any(one is not None and is_of_numbers(one) for one in behind) else ())


def is_of_numbers(error: BaseException) -> bool:
    """Whether the words of an error are of NaN, infinities, or what torch says of them without their names."""
    if isinstance(error, _OTHER):
        return False
    return bool(_WORDS.search(str(error)) or _REFUSALS.search(str(error)))


def _spoken_of(error: BaseException, values: _Values) -> tuple[Tensor, ...]:
    if isinstance(error, LookupError):
        held = _behind_an_index(error, values)
    elif isinstance(error, _OTHER):
        return ()
    else:
        held = (_held if _WORDS.search(str(error)) else _refused)(error, values)
    with quiet(), torch.no_grad():
        for most, tensors in held:
            worst = [(one, rank) for one in tensors if (rank := _rank(one)) < most]
            if worst:
                least = min(rank for _, rank in worst)
                return tuple(one for one, rank in worst if rank == least)[:_MOST]
    return ()


def _held(error: BaseException, values: _Values) -> _Held:
    """Yield the tensors among the local variables of each frame that the error may be of, from the innermost on."""
    for depth, (frame, line) in enumerate(_frames(error)):
        yield _MASK if depth else math.inf, list(_in_frame(values(frame), meant(frame.f_code.co_filename, line)))


def _refused(error: BaseException, values: _Values) -> _Held:
    """Yield what a function of torch's or a library's refused, or the script's own condition was asked of."""
    of_numbers = _REFUSALS.search(str(error)) is not None
    for depth, (frame, line) in enumerate(_frames(error)):
        names = meant(frame.f_code.co_filename, line)
        own = depth == 0 and kind_of(frame.f_code.co_filename) == USER
        if names is not None and (of_numbers or (names.decided and own)):
            yield _INFINITY, list(_named(values(frame), names.asked))


def _behind_an_index(error: LookupError, values: _Values) -> _Held:
    """Yield what the index was made of, where that is what NaN becomes as an integer."""
    if any(number in str(error) for number in _NAN_AS_INTEGER):
        for frame, line in _frames(error):
            names = meant(frame.f_code.co_filename, line)
            if names is not None:
                yield _INFINITY, list(_named(values(frame), names.asked | names.made))


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames[: -_MOST_FRAMES - 1 : -1]


def _tensors(frame: FrameType) -> _Local:
    return ((name, one) for name, one in list(frame.f_locals.items()) if isinstance(one, Tensor))


def _arrays(frame: FrameType) -> _Local:
    for name, one in list(frame.f_locals.items()):
        if type(one).__module__ == "numpy" and str(getattr(one, "dtype", "")) in _FLOATS and one.size <= _LARGEST:
            yield name, torch.tensor(one.tolist(), dtype=torch.float64)


def _named(local: _Local, names: AbstractSet[str]) -> Iterator[Tensor]:
    yield from (one for name, one in local if name in names)


def _in_frame(local: _Local, names: Meant | None) -> Iterator[Tensor]:
    for name, one in local:
        if not (names is None or name in names.asked or name in names.told):
            continue
        # What a message shows alone may be a number that begins at infinity, such as the best loss so far.
        if names is None or name in names.asked or not is_bad(one) or fact(one).nan:
            yield one


def _rank(tensor: Tensor) -> float:
    if not is_bad(tensor):
        return math.inf
    counted = fact(tensor)
    return 0 if counted.nan else _INFINITY if counted.posinf else _MASK
