"""How the loops around a bad answer were left: by themselves, or for what was made of the answer (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nandiag.runtime.watch.told.ways.descent import Descent
from nandiag.runtime.watch.told.ways.followed import RETURN, Call, Followed, Step
from nandiag.runtime.watch.told.ways.loops import Loop, loops_around
from nandiag.runtime.watch.told.ways.own import gives_turn


class Way(NamedTuple):
    """Where the script went: ``goes_on`` with the innermost loop, or with one ``around`` that it has left."""

    goes_on: bool
    around: bool


class Left:
    """The functions that ask, the innermost first, and what they have run since.

    ``cut``: the script went on, unseen.
    """

    def __init__(self, path: Iterable[tuple[Followed, int | Call]], *, cut: bool) -> None:
        self._cut, self._steps = cut, dict[Followed, list[Step]]()
        for step in Descent().steps(path):
            self._steps.setdefault(step.function, []).append(step)
        self.asking = [one for one in self._steps if one.asks is not None]
        self._sources = [one for one in self._steps if one.gives_to is not None]
        paused = self._paused()
        self._loops = {one: self._run(one, by_turns=one in paused.values()) for one in self._steps}
        self._paused_at = {one for one, outer in paused.items() if self._loops[outer]}

    def _paused(self) -> dict[Followed, Followed]:
        """Return the generators that ask and gave a turn last, each with what goes through these: that leaves them."""
        pairs = zip(self.asking, self.asking[1:], strict=False)
        return {one: outer for one, outer in pairs if gives_turn(one.code, self._newest(one).line)}

    def _run(self, one: Followed, *, by_turns: bool) -> list[Loop]:
        first, *others = self._steps[one]
        loops = loops_around(one.code, first.line, by_turns=by_turns)
        for loop in loops:
            for at, step in enumerate(others, 1):
                loop.runs(step.line)
                if loop.over:
                    loop.left_at = at - 1
                    break
        return loops

    def loops(self, one: Followed) -> list[Loop]:
        """Return the loops of a function around where it asks, the innermost first, each as it was left.

        None of a generator's that others go through, and have left at a turn.
        """
        return [] if one in self._paused_at else self._loops[one]

    def goes_on(self, one: Followed, loop: Loop) -> bool | None:
        """Whether a loop went on or ended by itself, and was not left for the answer; None where that is not known."""
        if not (loop.over or loop.turned) and self._cut:
            return None
        step = self._steps[one][loop.left_at if loop.over else -1]
        if loop.over and not loop.is_head(step.line):
            return True if loop.turned and step.for_answer is None else self._is_own_end(one, step)
        if not loop.over:
            return True if loop.turned else self._is_own_end(one, step)
        return _not(loop.by_else or self._is_cut_off(one, loop) or step.head)

    def _is_own_end(self, one: Followed, step: Step) -> bool | None:
        """Whether a step leads out by itself; why it ends the script a question may tell that was asked before."""
        left = self._for_answer(one, step)
        return None if step.ends and left is False else _not(left)

    def goes_on_behind(self, one: Followed, loop: Loop) -> bool | None:
        """Do what :meth:`goes_on` does where one within was left: not where the script ended within the same turn."""
        on = self.goes_on(one, loop)
        return False if on is None and not (self._cut or loop.over or loop.turned) else on

    def _for_answer(self, one: Followed, step: Step) -> bool | None:
        """Whether a step is made for the answer; that of a call which asks itself by what goes on in there."""
        if step is not self._steps[one][0] or step.jumps or one in (*self.asking[:1], *self._sources):
            return step.for_answer
        return self.for_answer(self.asking[self.asking.index(one) - 1]) or None

    def for_answer(self, one: Followed) -> bool | None:
        """Whether a function was left for the answer."""
        return self._for_answer(one, self._newest(one))

    def ends_for_answer(self, one: Followed) -> bool:
        """Whether it raised an error, or ended the script, for the answer: behind its loops.

        Not by the call that was under way, as in ``sys.exit(main())``.
        """
        step = self._newest(one)
        if step is self._steps[one][0] and one is not self.asking[0]:
            return False
        return step.ends and step.for_answer is True and not any(loop.has(step.line) for loop in self._loops[one])

    def raised(self, one: Followed) -> bool:
        """Whether what a function had called raised an error of its own."""
        return any(self._newest(inner).ends for inner in self.asking[: self.asking.index(one)])

    def _newest(self, one: Followed) -> Step:
        steps = self._steps[one]
        return next((step for step in reversed(steps) if step.line != RETURN), steps[0])

    def _is_cut_off(self, one: Followed, loop: Loop) -> bool:
        """Whether what gave a loop of the function its turns, a generator, was left for the answer."""
        gone = [of for of in self._sources if of.gives_to is not None and self._steps[of][-1].line == RETURN]
        sources = [of for of in gone if of.gives_to[0] is one and loop.is_head(of.gives_to[1])]  # type: ignore[index]
        flagged = (self.goes_on(source, inner) is False for source in sources for inner in self._loops[source])
        return any(flagged) or any(step.jumps and step.for_answer is True for step in map(self._newest, sources))


def _not(known: bool | None) -> bool | None:  # noqa: FBT001 - as it is known
    return None if known is None else not known


def way_of(left: Left, loops: Sequence[tuple[Followed, Loop]], *, makes: Iterable[Loop]) -> Way | None:
    """Return where the script went behind the answer by the ``loops`` around it that train, the innermost first.

    Each turn of those that it ``makes`` optimizers in trains anew: one of some trials was given up. What went on may
    yet be left for what was made of the answer: an epoch of bad losses.
    """
    made, went, was_left = set(map(id, makes)), None, False
    for one in left.asking:
        for loop in (inner for of, inner in loops if of is one):
            on = (left.goes_on_behind if was_left else left.goes_on)(one, loop)
            if on is None:
                return went or (Way(goes_on=False, around=True) if was_left else None)
            if on and went is None:
                went = Way(goes_on=not was_left or id(loop) in made, around=was_left)
            if on and not loop.over:
                return went
            if not on:
                was_left, went = True, None
        if went is not None and went.goes_on and left.ends_for_answer(one):
            was_left, went = True, None
    return went or (Way(goes_on=False, around=False) if was_left else None)
