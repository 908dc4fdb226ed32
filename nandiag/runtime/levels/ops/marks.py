"""Between what an op ran: the phase of code outside of modules is known only when it is seen what followed (worker)."""

from __future__ import annotations

from bisect import bisect_left

MODEL, BACKWARD, UPDATE = "model", "backward", "update"


class Marks:
    """Where models, backward calls and the update began within a step, by the number of the op that came next."""

    def __init__(self) -> None:
        self._models: list[int] = []
        self._backwards: list[int] = []
        self._update: int | None = None
        self._begins = 0

    def put(self, what: str, index: int) -> None:
        """Something of the kind ``what`` begins before op ``index``."""
        if what == UPDATE:
            self._update = index
        else:
            self._update = None  # what runs now is a closure's
            (self._models if what == MODEL else self._backwards).append(index)

    def clear(self, index: int) -> None:
        """A step is over; the next begins with op ``index``."""
        self._models.clear()
        self._backwards.clear()
        self._update = None
        self._begins = index

    @property
    def unfinished(self) -> bool:
        """Whether a model ran and no backward followed it yet."""
        return bool(self._models) and (not self._backwards or self._models[-1] >= self._backwards[-1])

    @property
    def last_backward(self) -> int:
        """The number of the first op after the newest backward began, else of the step."""
        return self._backwards[-1] if self._backwards else self._begins

    def is_before_update(self, index: int) -> bool:
        """Whether an op ran before the update that is under way, or was just made."""
        return self._update is not None and index < self._update

    def phase(self, index: int) -> str:
        """Return the phase of an op outside of modules and of backward."""
        if self._update is not None and index >= self._update:
            return "optimizer"
        if index < self._begins:
            return "data"
        later = bisect_left(self._backwards, index + 1)
        if self._backwards and later == len(self._backwards):
            return "optimizer"  # between backward and the step
        if not self._models:
            return "forward"
        return self._round_model(index, later)

    def _round_model(self, index: int, later: int) -> str:
        """Data before the model of a micro-step, forward between two modules of it, loss after the last one."""
        previous = self._backwards[later - 1] if later else self._begins
        following = self._backwards[later] if later < len(self._backwards) else None
        inside = [one for one in self._models if one >= previous and (following is None or one < following)]
        if not any(one > index for one in inside):
            return "loss"
        return "forward" if any(one <= index for one in inside) else "data"
