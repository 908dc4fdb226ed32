"""What the script asked of, whether it is finite: on the answer it may leave, or leave the step out (worker).

Where it leaves and the step cannot be run again, that is the nearest to the origin that is known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from time import perf_counter
from types import CodeType
from typing import Any, NamedTuple
from weakref import ref as reference

from torch import Tensor

from nandiag.runtime.births.known import CLIPS
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, Trail, is_ours, places_on, trail
from nandiag.runtime.guard import guarded
from nandiag.runtime.leaves import BUILT_IN, is_leaf
from nandiag.runtime.look.finite import fact, is_bad, local, quiet
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import Given, Made, is_of
from nandiag.runtime.tape.state import capturing
from nandiag.runtime.watch.clock import Clock
from nandiag.runtime.watch.told.ways.follow import Ways
from nandiag.runtime.watch.told.ways.left import Way

_MOST, _LARGEST, _FRAMES = 16, 1 << 10, 6
_BEHIND = 4
_FLAGS = 0.0, 1.0  # what answers are where they are numbers: those of several ranks may be summed
_PAUSE = 0.02  # seconds: sixteen questions cost less than half a percent of that
_MOST_LINES, _MOST_TURNS, _MOST_KNOWN, _LITTLE = 64, 512, 256, 1 << 14


class Question(NamedTuple):
    """A copy of the tensor that was ``given`` to a question, as it was then, where and in which step.

    ``number`` is the ``id`` of what was given; ``norm``: it is known to be the norm of the gradients; ``loss`` is the
    number of the call that made it, or what it was taken off.
    """

    tensor: Tensor
    given: Callable[[], Tensor | None]
    number: int
    trail: Trail
    step: int
    norm: bool = False
    loss: int = 0

    def spot(self, micro_step: int) -> Spot:
        """Return the place in the script, by its and libraries' frames."""
        frames = tuple(map(Frame._make, places_on(self.trail, _FRAMES)[0]))
        return Spot(None, None, frames, "loss", micro_step)


class Asked:
    """The newest questions; ``known`` are those of losses, and norms of gradients, to which the answer was bad.

    Nothing is read off a device for a question before the script itself reads an answer that the line has not had
    before; one that is answered now so, now otherwise is let pass at last. No more of the script's is held than a few
    small tensors of torch's own memory, without a graph.
    """

    def __init__(self, clock: Clock, tape: Tape) -> None:
        self._clock, self._tape = clock, tape
        self._questions: deque[Question] = deque(maxlen=_MOST)
        self._usual: dict[tuple[CodeType, int], bool] = {}
        self._turns: Counter[tuple[CodeType, int]] = Counter()
        self._step, self._count, self._unusual = -1, 0, -1
        # The newest step in which a line was told of a bad loss, and by which answer; None for the number itself.
        self._bad_in: dict[tuple[CodeType, int], tuple[int, bool | None]] = {}
        self._good_in: dict[tuple[CodeType, int], int] = {}  # and that in which it had its usual answer
        self._good_beside = -1
        self._again = -1, -1  # the newest step in which a line was told of a bad loss again, and that before
        self._since = 0.0
        # Where it asks behind its newest backward call, in what step and behind how many such calls of it.
        self._behind, self.behind = (-1, -1), deque[Trail](maxlen=_BEHIND)
        self.turns_behind = 0  # of this step
        self.known: list[Question] = []
        self.ways = Ways()
        # Where so ``many`` are known they are not to wait for a border.
        self.many = 8
        self.on_many: Callable[[], object] = _nothing
        self.on_bad: Callable[[], object] = _nothing

    @guarded("questions")
    def of(self, tensor: Any, frame: Any) -> None:
        """The script asks in ``frame`` whether ``tensor`` is finite; what is larger than a loss is let pass."""
        step = self._clock.step
        if self._step != step:
            self._step, self._count, self._since, self.turns_behind = step, 0, perf_counter(), 0
        self._is_behind(frame)
        kind = type(tensor)
        if not (kind in BUILT_IN or hasattr(kind, "full_tensor")) or tensor.numel() > _LARGEST:
            return  # a class of the script's own would see the copy made
        self._count += 1
        if (self._count <= _MOST or self._may_go_on()) and not capturing():
            with quiet():
                data = local(tensor)
                copy = None if data is None else data.clone()
            if copy is not None:
                self._questions.append(Question(copy, _held(tensor), id(tensor), trail(frame), step))

    def _is_behind(self, frame: Any) -> None:
        """Note where it asks first behind a backward call; whether gradients are finite, as a rule."""
        at = self._clock.step, self._clock.micro_step
        if at != self._behind and at[1]:
            self.turns_behind += 1
            self._behind = at
            self.behind.clear()
        if at[1] and len(self.behind) < _BEHIND:
            self.behind.append(trail(frame))

    def _may_go_on(self) -> bool:
        """Without an update a step may go on for ever: after a while questions are kept again."""
        now = perf_counter()
        if now - self._since < _PAUSE:
            return False
        self._since, self._count = now, 0
        return True

    def finish(self) -> None:
        """The script ends: what it asked of last is read, whatever answer its line is used to."""
        self._know()

    @guarded("questions")
    def read(self, tensor: Any, frame: Any) -> None:
        """The script reads ``tensor`` as a number, and it is not finite."""
        self.of(tensor, frame)
        self._unusual = self._clock.step
        if self._know():
            self._was_bad(frame, None)

    @guarded("questions")
    def answered(self, number: float | bool, frame: Any) -> None:  # noqa: FBT001 - as it is read
        """The script reads a truth value or a finite number: it may be the answer to a question of this step."""
        answer = bool(number)
        self._may_be_good(answer, frame, value=type(number) is float and number not in _FLAGS)
        if not self._questions or self._questions[-1].step != self._clock.step:
            return
        line = frame.f_code, frame.f_lasti
        usual = self._usual.get(line)
        if (
            usual is answer
            or is_ours(frame.f_code.co_filename)
            or self._turns[line] > _MOST_TURNS
            or (usual is None and len(self._usual) >= _MOST_LINES)
        ):
            return
        if usual is not None:
            self._unusual = self._clock.step
        if self._know():
            self._was_bad(frame, answer)
        else:
            self._usual.setdefault(line, answer)
            self._turns[line] += 1

    def _was_bad(self, frame: Any, answer: bool | None) -> None:  # noqa: FBT001 - as it is read
        line, step = (frame.f_code, frame.f_lasti), self._clock.step
        self.on_bad()
        self.ways.follow(frame, step)
        if len(self._bad_in) < _MOST_LINES or line in self._bad_in:
            before, _ = self._bad_in.get(line, (step, None))
            self._again = (step, before) if before < step else self._again
            self._bad_in[line] = step, answer
        if self._good_in.get(line) == step:
            self._good_beside = step

    def _may_be_good(self, answer: bool, frame: Any, *, value: bool) -> None:  # noqa: FBT001 - as it is read
        """Note in which step a line had a finite ``value``, or the answer that is given to good ones."""
        line, step = (frame.f_code, frame.f_lasti), self._clock.step
        bad_in, bad = self._bad_in.get(line, (-1, None))
        usual = self._usual.get(line)
        as_usual = (bad_in == step and bad is not answer) if usual is None else usual is answer
        if not (value or as_usual):
            return
        if bad_in == step:
            self._good_beside = step
        elif line in self._good_in or len(self._good_in) < _MOST_LINES:
            self._good_in[line] = step

    @property
    def bad_before(self) -> int | None:
        """The earlier step in which a line was told of a bad loss that is told of one in this step, if any."""
        return self._again[1] if self._again[0] == self._clock.step else None

    @property
    def all_bad(self) -> bool:
        """Whether no line of this step that was told of a bad loss was told of a good one too."""
        return self._good_beside != self._clock.step

    def let_go(self, tensors: Iterable[Tensor]) -> None:
        """Have nothing refer to ``tensors`` any more: what they hold is about to be that of others."""
        parted = set(map(id, tensors))
        for kept in (self._questions, self.known):
            for at, one in enumerate(kept):
                if one.number in parted or ((given := one.given()) is not None and is_of(parted, given)):
                    kept[at] = one._replace(given=_nothing)

    def scaler_skipped(self) -> None:
        """A scaler left out the update: what the script was told of the norm of the gradients is of that as well."""
        self.known = [one for one in self.known if not one.norm]

    @property
    def unusual(self) -> bool:
        """Whether a line of this step was given another answer than ever before, of this rank or of another one."""
        return self._unusual == self._clock.step

    @property
    def newest(self) -> Question | None:
        """The newest question of this step of a loss that was bad."""
        return next((one for one in reversed(self.known) if one.step == self._clock.step and not one.norm), None)

    @property
    def loss(self) -> Question | None:
        """The newest one, unless what it asks of was made of what had a graph when this step began.

        A loss whose backward is over is spoken of in many ways, and all the harm that it can do is told by then.
        """
        question = self.newest
        if question is None:
            return None
        words = (word for entry in self._tape.whole((question.tensor,)) for word in entry.words if type(word) is Given)
        given = (tensor for word in words if (tensor := word.get()) is not None and tensor.requires_grad)
        return question if all(map(is_leaf, given)) else None

    def way(self, question: Question | None) -> Way | None:
        """The script has ended: return which way it went behind its newest bad answer, where ``question`` is of it."""
        known = None if question is None else self._known(question)
        places = [] if known is None else [place[:2] for place in known[0].places]
        return self.ways.known(self._clock.step if question is None else question.step, places)

    def _know(self) -> bool:
        """Add the bad losses among the step's questions to what is known; returns whether anything was bad."""
        asked = [one for one in tuple(self._questions) if one.step == self._clock.step]
        self._questions.clear()
        self._count = 0  # without an update a step may go on for ever
        with quiet():
            bad = [one for one in asked if is_bad(one.tensor) and is_sure(one.tensor)]
        for one in bad:
            maker = self._maker(one)
            if maker is not None and len(self.known) < _MOST_KNOWN and not self._is_known(one, loss := _loss_of(maker)):
                self._tape.made(maker, [one.tensor])
                self.known.append(one._replace(norm=maker.name in CLIPS, loss=loss))
        if len(self.known) >= self.many:
            self.on_many()
        return bool(bad)

    def _is_known(self, question: Question, loss: int) -> bool:
        """Whether the script asked of it before, or of the same in another way: what is behind ``detach``, say."""
        return any(one.loss == loss and one.step == question.step for one in self.known)

    def _known(self, question: Question) -> tuple[Entry, int] | None:
        """Return what made what was given, which may be gone with the function that the loop was in."""
        given = question.given()
        tape = self._tape
        return tape.maker_of_gone(question.number, question.given) if given is None else tape.maker(given)

    def _maker(self, question: Question) -> Entry | None:
        """Return what made a loss or a norm of gradients; None for what has no graph, nor was taken off one."""
        known = self._known(question)
        if known is None or known[1]:
            return None
        entry = known[0]
        taken = any(type(word) is Made and word.entry.grad for word in entry.words)
        return entry if entry.grad or taken or entry.name in CLIPS else None


def _loss_of(maker: Entry) -> int:
    """Return the number of what made it, or of what that was made of where it has no graph any more."""
    return maker.number if maker.grad else next((one.entry for one in maker.words if type(one) is Made), maker).number


def _nothing() -> None:
    """Nobody is to be told."""


def _held(tensor: Tensor) -> Callable[[], Tensor | None]:
    """Return what gives ``tensor`` back; one taken off a loss (``detach``) may be gone before the answer is read."""
    if not tensor.requires_grad and type(tensor) in BUILT_IN:
        memory = tensor.untyped_storage()
        if memory.resizable() and memory.nbytes() <= _LITTLE:  # else it is of numpy's, a file's or another process's
            return lambda: tensor
    return reference(tensor)  # the one that the tape has: what made it is found by that when it is gone


def is_sure(tensor: Tensor) -> bool:
    """Whether it is no mask, and nothing that begins there: NaN is in it, or +Inf that the script looked for."""
    counted = fact(tensor)
    return bool(counted.nan or counted.posinf)
