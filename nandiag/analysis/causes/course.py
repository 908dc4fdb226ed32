"""The course of a run before its origin: where loss and gradient norm were calm, and from where they grew (reader).

The loss of a step is computed with the weights that the update before it left. A loss that jumps right behind a calm
update therefore speaks of the batch; one that grows from update to update, of the updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from nandiag.events import History, Trainer, words

# Growth over the usual gradient norm, and over the largest of the usual losses, that counts as running away.
GREW, LOSS_GREW = 100.0, 1000.0
_CALM, _LOSS_CALM = 5.0, 5.0
_LEAST_LOSS = 0.01
_ROSE = 2.0
_ABOUT, _HELD, _FEW = 0.9, 20, 20
# A warm-up rises by less from update to update, but for its first ones, which are short.
_LEAPT, _LEAPT_FROM_NONE = 10.0, 1.0
_SWEPT, _EVEN, _UNEVEN = 1e4, 1.2, 2
_LARGEST = 1e39
_NO_SQUARE = "beyond 1.8e19 (float32 does not hold its square)"
# So many times its first values a loss comes to that rose, a step at a time, all along: it was not calm.
_RISEN = 20.0
# A loss that each of so many updates multiplies so, and by more each time, is led away by these.
_MULTIPLIED, _UPDATES = 5.0, 3
_BEGINNING, _LOOK_BACK, _AFTERMATH = 64, 32, 3


@dataclass(frozen=True, slots=True)
class Row:
    """One step of one optimizer. A norm beyond float32 counts as 1e39; ``None`` is what was not seen."""

    step: int
    loss: float | None
    norm: float | None
    lr: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """The steps of one optimizer before the origin, oldest first; ``calm`` of them come before the growth.

    ``usual_norm`` and ``usual_loss`` are the median norm and the largest loss (without its sign) of the beginning, this
    a hundredth of the norm at least.
    ``lr_now`` is the learning rate at the last step, that of the origin where it is known. It is the course of
    optimizer ``number`` (from 0, in the order of their first steps) of so many; ``whole``: from its first step on.
    """

    rows: tuple[Row, ...]
    calm: int
    usual_norm: float
    usual_loss: float
    lr_now: float | None = None
    number: int = 0
    of: int = 1
    whole: bool = True
    own: Trainer | None = None  # by its name, where it is known

    @property
    def growth(self) -> float:
        """How many times its usual value the gradient norm has at the end; infinite where only the loss tells."""
        newest = [row.norm for row in self.rows[-2:] if row.norm is not None]
        return max(newest, default=0.0) / self.usual_norm if self.usual_norm else 0.0

    @property
    def factor(self) -> float:
        """The least by which the gradient norm grew from one step to the next, from the last calm step on, else 1."""
        norms = [row.norm for row in self.rows[max(self.calm - 1, 0) :] if row.norm]
        return max(min((new / old for old, new in pairwise(norms)), default=1.0), 1.0)

    @property
    def loss_growth(self) -> float:
        """How many times its usual value the loss has at the end."""
        newest = [abs(row.loss) for row in self.rows[-2:] if row.loss is not None]
        return max(newest, default=0.0) / self.usual_loss if self.usual_loss else 0.0

    @property
    def ran_away(self) -> bool:
        """Whether gradient norm or loss had grown far beyond their usual values when the origin came."""
        return len(self.rows) > 1 and (self.growth >= GREW or self.loss_growth >= LOSS_GREW)

    @property
    def from_the_start(self) -> bool:
        """Whether it grew from the first steps of the run on."""
        return self.whole and self.calm <= max(2, len(self.rows) // 8)

    @property
    def accelerates(self) -> bool:
        """Whether each of three updates and more from the first on multiplied the loss, and each by more."""
        losses = [abs(row.loss) if row.loss is not None else 0.0 for row in self.rows]
        times = [new / old if old else 0.0 for old, new in pairwise(losses)]
        grows = bool(times) and times[0] >= _MULTIPLIED and all(one < more for one, more in pairwise(times))
        return self.whole and len(times) >= _UPDATES and grows

    @property
    def onset(self) -> Row:
        """The first step that was no longer calm; the last one where all were."""
        return self.rows[min(self.calm, len(self.rows) - 1)]

    @property
    def rate_before(self) -> float | None:
        """The lowest learning rate of the calm steps shortly before the growth."""
        rates = [row.lr for row in self.rows[max(self.calm - _LOOK_BACK, 0) : self.calm] if row.lr is not None]
        return min(rates, default=None)

    @property
    def rose_lately(self) -> int | None:
        """In how many steps the learning rate rose from that before the growth; None where it was never lower."""
        low = self.rate_before
        rates = [(row.step, row.lr) for row in self.rows if row.lr is not None]
        if low is None or all(rate >= low for _, rate in rates):
            return None
        return self.rows[-1].step - next(step for step, rate in reversed(rates) if rate == low)

    @property
    def rate_at_onset(self) -> float | None:
        """The learning rate of the last calm step, where it had risen by then and rose on."""
        rate, low, high = self.rows[max(self.calm - 1, 0)].lr, self.rate_before, self.rate_at_end
        rises = rate is not None and low is not None and high is not None and _ROSE * low <= rate <= high / _ROSE
        return rate if rises else None

    @property
    def rate_of_calm(self) -> float | None:
        """The highest learning rate, far below the last, at which nothing grew; the last calm steps are left out."""
        high = self.rate_at_end or 0.0
        calm = [row.lr for row in self.rows[: max(self.calm - _AFTERMATH, 1)] if row.lr is not None]
        return max((rate for rate in calm if rate <= high / _ROSE), default=None)

    def held(self, rate: float) -> bool:
        """Whether calm steps enough were made at about this rate: one that is only passed may be too high to keep."""
        return sum(self._calm_at(rate)) >= _HELD

    def is_all_at(self, rate: float) -> bool:
        """Whether all calm steps were made at about this rate: it was not passed, however few they are."""
        return all(self._calm_at(rate))

    def _calm_at(self, rate: float) -> list[bool]:
        calm = [row.lr for row in self.rows[: max(self.calm - _AFTERMATH, 1)] if row.lr is not None]
        return [one >= _ABOUT * rate for one in calm]

    @property
    def rate_at_end(self) -> float | None:
        """The highest learning rate from the growth on."""
        rates = [row.lr for row in self.rows[max(self.calm - 1, 0) :] if row.lr is not None]
        return max([*rates, *([self.lr_now] if self.lr_now is not None else [])], default=None)

    @property
    def rate_rose(self) -> bool:
        """Whether the learning rate rose before, or while, gradient norm and loss grew."""
        low, high = self.rate_before, self.rate_at_end
        return low is not None and high is not None and low >= 0 and high >= _ROSE * low and high > 0

    @property
    def is_swept(self) -> bool:
        """Whether each step multiplied the learning rate alike, up over orders of magnitude, as a search for one does.

        A warm-up rises by ever smaller factors, and a schedule by far less in so few steps.
        """
        rates = [row.lr for row in self.rows if row.lr]
        lr = rates[rates.index(min(rates)) :] if rates else []
        times = [math.log(new / old) if old > 0 < new else 0.0 for old, new in pairwise(lr)]
        usual = median(times or [0.0])
        uneven = sum(not usual / _EVEN <= one <= usual * _EVEN for one in times)
        return len(times) >= _FEW and sum(times) >= math.log(_SWEPT) and uneven <= _UNEVEN and min(times) > 0.0

    @property
    def leap(self) -> tuple[float, float] | None:
        """The highest learning rate before the last two updates and that of the last, where it is far higher."""
        rates = [row.lr for row in self.rows if row.lr is not None]
        low, high = max(rates[:-2], default=math.inf), max(rates[-2:], default=0.0)
        return (low, high) if high >= max(_LEAPT * low, _LEAPT_FROM_NONE if low == 0.0 else 0.0) else None

    @property
    def polyak(self) -> float | None:
        """The step by which a gradient as the last calm one would bring its loss to 0: the loss over its square."""
        row = self.rows[max(self.calm - 1, 0)]
        return abs(row.loss) / row.norm**2 if row.loss and row.norm else None

    @property
    def overshoot(self) -> float:
        """How many times its whole loss the last calm step's update takes off by its slope, where few were calm.

        Plain gradients that go down a bowl to 0 are stable up to 4 times: at a rate of two over the curvature. Losses
        that are below 0 now and then, as those of a policy, are of no such bowl.
        """
        early = self.whole and self.calm <= _FEW and all((row.loss or 0.0) >= 0.0 for row in self.rows)
        return (self.rate_at_end or 0.0) / self.polyak if early and self.polyak else 0.0

    @property
    def jump(self) -> float:
        """How many times the largest calm loss the loss of the first step that was not calm is."""
        loss = self.onset.loss
        calm = max((abs(row.loss) for row in self.rows[: self.calm] if row.loss is not None), default=0.0)
        return abs(loss) / calm if loss is not None and calm and self.calm < len(self.rows) else 1.0

    def grown(self) -> str:
        """Return by how much it grew, as a sentence with its numbers."""
        first = self.rows[max(self.calm - 1, 0)]
        found = [
            (name, low, high, step)
            for name, low, (step, high) in (
                ("gradient norm", first.norm, _newest(self.rows, "norm")),
                ("loss", first.loss, _newest(self.rows, "loss")),
            )
            if low is not None and high is not None and abs(high) > abs(low)
        ]
        # A loss of float64 is what it is; of a norm the square is what overflows first.
        told = {"gradient norm": shown, "loss": words.number}
        parts = [f"the {name} grew from {words.number(low)} to {told[name](high)}" for name, low, high, _ in found]
        last = max((step for *_, step in found), default=self.rows[-1].step)
        text = " and ".join(parts).replace("and the loss grew", "and the loss")
        name = self.own.name or "" if self.own is not None else ""
        which = f"optimizer {self.number + 1} of {self.of}, in the order of their first steps"
        whose = f" ({f'by {name}' if len(name) > 1 else which})" if self.of > 1 else ""
        when = f"From step {first.step} to step {last}"
        if first.step == last:
            when = f"In {words.count(len(self.rows) - max(self.calm - 1, 0), 'update')} at step {last}"
        return f"{when} {text}{whose}."


def courses(history: History | None, before: int, origin: int | None = None) -> tuple[Course, ...]:
    """Return the course of each optimizer in the steps before ``before``, the one that grew most first.

    A row that is bad from step ``origin`` on (else ``before``) is what broke there, and no growth: whose it is comes
    before those of its kind that make far smaller updates, for these grew by what it had made.
    """
    if history is None:
        return ()
    many = len(set(history.optimizer)) or 1
    found = [
        replace(
            _course(rows, before, history),
            number=number,
            of=many,
            whole=history.step[0] == 0,
            own=history.trainers[number] if number < len(history.trainers) else None,
        )
        for number, rows in _rows(history, before, before if origin is None else origin).items()
    ]
    grown = sorted(found, key=lambda course: -max(course.growth / GREW, course.loss_growth / LOSS_GREW))
    broken = _broken(history, before if origin is None else origin)
    return tuple(sorted(grown, key=lambda course: not (course.number == broken and _drives(course, grown[0]))))


def _broken(history: History, origin: int) -> int | None:
    """Return the optimizer of the first row that is bad from step ``origin`` on."""
    rows = zip(history.step, history.loss, history.grad_norm, history.optimizer, strict=False)
    return next((one for step, loss, norm, one in rows if step >= origin and _is_bad(loss, norm)), None)


def _drives(course: Course, other: Course) -> bool:
    """Whether its rate is far higher than that of an ``other`` optimizer of its kind."""
    rate, slow = course.rate_at_end, other.rate_at_end
    alike = course.own is not None and other.own is not None and course.own.kind == other.own.kind
    return alike and rate is not None and slow is not None and rate >= _LEAPT * slow > 0


def _rows(history: History, before: int, origin: int) -> dict[int, list[Row]]:
    """Return the rows of each optimizer up to ``before``, and those of the fault's step that came ahead of it.

    A second optimizer's updates do not count as steps until there are more of them than of the first.
    """
    whose = history.optimizer or (0,) * len(history.step)
    found: dict[int, list[Row]] = {}
    for step, loss, norm, lr, one in zip(
        history.step, history.loss, history.grad_norm, history.lr, whose, strict=False
    ):
        bad = _is_bad(loss, norm)
        if step > before or (step >= origin and bad):
            break
        if (step < before or norm is not None) and (norm is not None or loss is not None):
            found.setdefault(one, []).append(Row(step, _finite(loss), _norm(norm), _finite(lr)))
    return found


def _course(rows: list[Row], before: int, history: History) -> Course:
    head = rows[: max(1, min(len(rows) // 4, _BEGINNING))]
    norm = median([row.norm for row in head if row.norm is not None] or [0.0])
    # A loss that happens to begin next to 0, as that of a policy does, is measured by its gradient.
    loss = max([abs(row.loss) for row in head if row.loss is not None] or [0.0])
    loss = max(loss, _LEAST_LOSS * norm)
    now = [lr for step, lr in zip(history.step, history.lr, strict=False) if step == before and lr is not None]
    only = len(set(history.optimizer)) < 2
    calm = _before_rise(rows[: _calm(rows, norm, loss)])
    return Course(tuple(rows), calm, norm, loss, _finite(now[0]) if now and only else None)


def _before_rise(calm: Sequence[Row]) -> int:
    """Return how many steps there were before the loss began to rise by orders of magnitude; all where it did not.

    It rises where it is twice what it was at most, time and again: a wild step alone is one among calm ones.
    """
    losses = [(at, abs(row.loss)) for at, row in enumerate(calm) if row.loss is not None]
    head = losses[: max(1, len(losses) // 4)]
    base = most = max((loss for _, loss in head), default=0.0)
    rises = []
    for at, loss in losses[len(head) :]:
        if loss >= _ROSE * most:
            rises.append(at)
            most = loss
    return rises[0] if base and len(rises) > 1 and most >= _RISEN * base else len(calm)


def _calm(rows: Sequence[Row], norm: float, loss: float) -> int:
    """Return how many steps there were up to the last one that was calm."""
    calm = [(row.norm or 0.0) <= _CALM * norm and abs(row.loss or 0.0) <= _LOSS_CALM * loss for row in rows]
    end = len(rows)
    while end > len(rows) - _AFTERMATH and calm[end - 1] and not all(calm[-_AFTERMATH:]):
        end -= 1  # one wild step may be followed by calm ones: what it left in the optimizer is still to come
    end = _last_calm(calm, end)
    # So may a wild step before it, with a calm one or two between.
    while len(rows) - 2 * _AFTERMATH < end < len(rows) and not all(calm[max(end - _AFTERMATH, 0) : end]):
        end = _last_calm(calm, end - 1)
    return end


def _last_calm(calm: Sequence[bool], end: int) -> int:
    while end and not calm[end - 1]:
        end -= 1
    return end


def _newest(rows: Sequence[Row], name: str) -> tuple[int, float | None]:
    """Return the larger one of the last two values, and the last step that had it."""
    values = [(row.step, value) for row in rows[-2:] if (value := getattr(row, name)) is not None]
    return max(reversed(values), key=lambda one: abs(one[1]), default=(0, None))


def shown(value: float | None) -> str:
    """Return a norm of a course in words; 1e39 stands for one of which float32 cannot hold the square."""
    return words.number(value) if value is None or value < _LARGEST else _NO_SQUARE


def _is_bad(*values: float | None) -> bool:
    return any(value is not None and not math.isfinite(value) for value in values)


def _norm(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else _LARGEST


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
