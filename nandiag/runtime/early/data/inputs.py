"""The batches that enter root modules: how large their values are, against all batches before (worker).

One small kernel a tensor, on every batch where steps are long and on each eighth where they are short, or each
thirty-second where a look would be felt; what it showed is read with the step's one host read. Of integers (token ids)
it is only the length that says anything; what needs a gradient is no data.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.early.data.handed import handed_in
from nandiag.runtime.early.data.rows import word_at
from nandiag.runtime.early.data.samples import channels_of, data_of, is_computed, is_mask, name_of, sample_of
from nandiag.runtime.early.data.sizes import Sizes, Spread
from nandiag.runtime.early.warner import Warner
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import extent, quiet
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.packed.words import Given

# Steps, in seconds, and of how many short and shorter ones each is looked at.
_SHORT_STEP, _SHORTER = 5e-3, 2e-3
_EACH, _EACH_SHORTER = 8, 32
_ALL_OF_FIRST = 64
_ENOUGH = 32
_MOST_TENSORS = 8
_MOST_PATHS = 128
_LARGEST = 1 << 27
_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
# Token ids, as a rule: their values are no sizes, their number is.
_IDS = frozenset({torch.int64, torch.int32, torch.int16})
_CHANNEL_LOOKS = 3
# Where something has happened, less will do to point at the batch.
_TIMES_AFTER = 3.0
_DEVIATIONS_AFTER = 4.0
_ENOUGH_AFTER = 8
# In the first steps little is known of what is usual: only what is out of all proportion is told, and only at a harm.
_TIMES_OF_FEW, _FEW_AFTER = 100.0, 3
# So many times as many values as in the largest batch before: what is summed or multiplied over them grows with them.
_TIMES_LONGER = 3.0
# What the loop makes of a batch to attack a model by lies close to it; what runs away does not.
_OUTGROWN = 2.0
# What is kept until the step is made, where steps are short: the newest few batches of at most so many elements.
_SMALL, _MOST_PASSED = 1 << 16, 8
# Of so many steps it is remembered whether their batches were no larger than those before.
_MOST_COMPARED = 64
# Sizes that wait for the end of their step: more come only of scripts that make no step.
_MOST_FRESH = 1 << 10

Path = tuple[int, int | str]


class Batch:
    """One tensor of a batch, held weakly, and the root module's call that it was given to."""

    __slots__ = ("entry", "path", "shape", "tensor")

    def __init__(self, path: Path, entry: Entry, tensor: Tensor) -> None:
        self.path = path
        self.shape = tensor.shape
        self.entry = weakref.ref(entry)
        self.tensor = Weakly(tensor)


class Usual(Sizes):
    """How large, and how long, one tensor of the batch is as a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = torch.Size([0])
        self.mask = False
        self.channels = 0

    def came(self, shape: torch.Size, size: float) -> None:
        """Take the shape of one more batch, and how large its values are; 0 of integers, which have no size."""
        if size:
            self.add(size)
        else:
            self.count += 1
        if shape.numel() > self.longest.numel():
            self.longest = shape


class Inputs:
    """Looks at what root modules are given; names the tensor, the sample and, of a DataLoader's, its index."""

    def __init__(self, warner: Warner, capture: Capture) -> None:
        self._warner = warner
        self._capture = capture
        self._usual: dict[Path, Usual] = {}
        self._told_at: set[tuple[int, Path]] = set()
        self._longer_at: set[tuple[int, Path]] = set()
        self._fresh: list[tuple[int, Usual, float, Batch]] = []
        self._far: list[tuple[Batch, float]] = []
        self.passed: deque[tuple[Path, Entry, Tensor]] = deque(maxlen=_MOST_PASSED)
        self._as_before: dict[int, bool] = {}

    # ------------------------------------------------------------------ as a batch goes in

    def passes(self, step: int) -> bool:
        """Whether the batches of this step are passed over, for steps are short."""
        seconds = self._capture.step_seconds
        each = _EACH_SHORTER if seconds < _SHORTER else _EACH
        return step % each != 0 and step > _ALL_OF_FIRST and seconds < _SHORT_STEP

    @guarded("inputs")
    def root_begins(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], *, passed: bool) -> None:
        """A root module is called with gradients on."""
        if passed and len(args) == 1 and not kwargs and type(args[0]) is Tensor:
            if not args[0].requires_grad and args[0].numel() <= _SMALL:
                self.passed.append(((id(entry.function), 0), entry, args[0]))
            return
        for key, tensor in data_in(args, kwargs):
            path = id(entry.function), key
            usual = self._usual_of(path)
            if usual is None or usual.mask:
                continue
            if not passed:
                self._look(Batch(path, entry, tensor), usual, tensor)
            elif tensor.numel() <= _SMALL:
                # Should the step go wrong, it is looked at after all.
                self.passed.append((path, entry, tensor))

    def _usual_of(self, path: Path) -> Usual | None:
        usual = self._usual.get(path)
        if usual is None and len(self._usual) < _MOST_PATHS:
            usual = self._usual[path] = Usual()
        return usual

    def _look(self, batch: Batch, usual: Usual, tensor: Tensor) -> None:
        if tensor.dtype in _IDS:
            self._look_at_length(batch, usual)
            return
        data = tensor.detach() if tensor.requires_grad else tensor
        self._warner.reads.later(extent(data), partial(self._looked, batch))
        if usual.channels < _CHANNEL_LOOKS:
            self._look_at_channels(batch, data)

    def _look_at_length(self, batch: Batch, usual: Usual) -> None:
        """Of token ids there is nothing to read: what they are is no size."""
        self._take_in()
        if usual.count >= _FEW_AFTER:
            self._note(batch.shape.numel() <= usual.longest.numel())
        self._fresh.append((self._capture.tape.step, usual, 0.0, batch))

    def _looked(self, batch: Batch, ends: Sequence[float]) -> None:
        self._take_in()
        usual, size = self._usual[batch.path], max(map(abs, ends))
        if not 0.0 < size < math.inf:
            return
        limits = self._warner.limits
        far = usual.count >= _ENOUGH and size > limits.batch * usual.largest
        if far and usual.spread().score(size) > limits.deviations:
            self._far.append((batch, size))
        self._compare(batch, usual, size)
        self._fresh.append((self._capture.tape.step, usual, size, batch))

    def looked(self) -> None:
        """All that waited was read: tell of what is far off, in the light of what came behind it in the step."""
        far, self._far = self._far, []
        for batch, size in far:
            self._say(batch, size, self._usual[batch.path].spread(), at_harm=False)

    def _compare(self, batch: Batch, usual: Usual, size: float) -> None:
        """Note whether what this step was given is no larger than what the steps before were."""
        if usual.count >= _FEW_AFTER and not usual.mask:
            entry = batch.entry() if size > usual.largest else None
            if entry is not None and self._is_computed(batch, entry):
                return  # a carried state that grows says nothing of the batch
            self._note(size <= usual.largest)

    def _note(self, same: bool) -> None:  # noqa: FBT001 - of one more tensor
        step = self._capture.tape.step
        self._as_before[step] = self._as_before.get(step, True) and same
        if len(self._as_before) > _MOST_COMPARED:
            self._as_before.pop(next(iter(self._as_before)))

    def as_before(self) -> tuple[int, ...]:
        """Return those of the newest steps whose batches were looked at and were no larger than those before."""
        return tuple(step for step, same in self._as_before.items() if same)

    def _take_in(self) -> None:
        """What a step was given is no measure for itself: it counts from the next step on."""
        now = self._capture.tape.step
        if self._fresh and (self._fresh[0][0] != now or len(self._fresh) > _MOST_FRESH):
            for _, usual, size, batch in self._fresh:
                usual.came(batch.shape, size)
            self._fresh.clear()

    def _say(self, batch: Batch, size: float, before: Spread, *, at_harm: bool) -> None:
        usual, step, entry = self._usual[batch.path], self._capture.tape.step, batch.entry()
        if entry is None or (step, batch.path) in self._told_at:
            return
        self._capture.tape.jots.settle()  # what the call was given is asked for
        if self._is_computed(batch, entry) or self._outgrown(usual, size):
            return
        word = word_at(entry, batch.path[1])
        data = data_of(batch.tensor(), word, batch.shape[0] if batch.shape else 0)
        usual.mask = not at_harm and data is not None and is_mask(data)
        if usual.mask:
            return
        self._told_at.add((step, batch.path))
        facts: dict[str, object] = {
            "size": size, "largest": before.largest, "typical": before.mean, "batches": usual.count,
            "deviations": round(min(before.score(size), 1e6), 1),
        }  # fmt: skip
        if before.aside:
            facts["aside"], self._as_before[step] = before.aside, False
        if data is not None:
            facts.update(sample_of(data, word, self._capture.batches, before.largest))
        facts.update(handed_in(entry, batch.path[1]))
        name = name_of(entry.function, batch.path[1])
        self._warner.say(("batch_outlier", facts), step, name, at_harm=at_harm)

    def _outgrown(self, usual: Usual, size: float) -> bool:
        """Whether the loop computed a far larger one in this step, in the same place: then this one began it."""
        larger = [batch for _, one, other, batch in self._fresh if one is usual and other > _OUTGROWN * size]
        calls = [(batch, entry) for batch in larger if (entry := batch.entry()) is not None]
        return any(self._is_computed(batch, entry) for batch, entry in calls)

    def _is_computed(self, batch: Batch, entry: Entry) -> bool:
        return is_computed(batch.tensor(), entry, self._capture.tape)

    def _judge_length(self, batch: Batch, usual: Usual, *, at_harm: bool) -> None:
        enough = usual.count >= _few(at_harm=at_harm) and not usual.mask
        if enough and batch.shape.numel() > _TIMES_LONGER * usual.longest.numel() > 0:
            self._say_longer(batch, usual, at_harm=at_harm)

    def _say_longer(self, batch: Batch, usual: Usual, *, at_harm: bool) -> None:
        entry, step = batch.entry(), self._capture.tape.step
        if entry is None or (step, batch.path) in self._longer_at:
            return
        self._longer_at.add((step, batch.path))
        facts: dict[str, object] = {"shape": [*batch.shape], "longest": [*usual.longest], "batches": usual.count}
        self._warner.say(("batch_longer", facts), step, name_of(entry.function, batch.path[1]), at_harm=at_harm)

    # ------------------------------------------------------------------ channels

    def _look_at_channels(self, batch: Batch, data: Tensor) -> None:
        found = channels_of(data)
        if found is None:
            self._usual[batch.path].channels = _CHANNEL_LOOKS
            return
        self._warner.reads.later(found, partial(self._channels_looked, batch))

    def _channels_looked(self, batch: Batch, values: Sequence[float]) -> None:
        usual, (largest, middle, channel), entry = self._usual[batch.path], values, batch.entry()
        factor = self._warner.limits.channel
        # Small units do no harm: it is the large ones that drown the others.
        if not (0.0 < middle < math.inf and largest < math.inf) or largest < max(factor * middle, factor):
            usual.channels = _CHANNEL_LOOKS
            return
        usual.channels += 1
        if usual.channels == _CHANNEL_LOOKS and entry is not None:
            facts: dict[str, object] = {"size": largest, "others": middle, "channel": int(channel)}
            name = name_of(entry.function, batch.path[1])
            self._warner.say(("batch_channel", facts), self._capture.tape.step, name)

    # ------------------------------------------------------------------ where a step went wrong

    def hold_against(self, *, at_harm: bool) -> None:
        """Hold the batches of a step that went wrong against those before, sampled or not; reads the host."""
        self._take_in()
        for _, usual, _, batch in self._fresh:  # of what was looked at, the shape is known though it is gone
            self._judge_length(batch, usual, at_harm=at_harm)
        with quiet():
            for entry in [one for one in self._capture.tape.entries if one.kind == ROOT and one.grad]:
                for key, tensor in data_in(*given(entry)):
                    self._judge(Batch((id(entry.function), key), entry, tensor), tensor, at_harm=at_harm)
            for path, entry, tensor in self.passed:
                if _is_data(tensor):
                    self._judge(Batch(path, entry, tensor), tensor, at_harm=at_harm)

    def forget(self) -> None:
        """A step is about to be made: what was passed over is of no use any more."""
        self.passed.clear()

    def _judge(self, batch: Batch, tensor: Tensor, *, at_harm: bool) -> None:
        usual = self._usual.get(batch.path)
        if usual is None or usual.mask or usual.count < _few(at_harm=at_harm) or not is_there(tensor):
            return
        self._judge_length(batch, usual, at_harm=at_harm)
        if tensor.dtype in _IDS:
            return
        if not at_harm and any(one is usual for _, one, *_ in self._fresh):
            return  # it was looked at as it went in, and is not unusual enough for a word without harm
        size = max(abs(float(end)) for end in extent(tensor))
        self._compare(batch, usual, size)
        before = self._before(usual, size, at_harm=at_harm)
        if size < math.inf and before is not None:
            self._say(batch, size, before, at_harm=at_harm)

    @staticmethod
    def _before(usual: Usual, size: float, *, at_harm: bool) -> Spread | None:
        """Return what was before, where ``size`` is far beyond it; at a harm what came seldom is none."""
        times = _TIMES_AFTER if usual.count >= _ENOUGH_AFTER else _TIMES_OF_FEW
        if size > times * usual.largest and (known := usual.spread()).score(size) > _DEVIATIONS_AFTER:
            return known
        return usual.without_far(size) if at_harm else None


def _few(*, at_harm: bool) -> int:
    return _FEW_AFTER if at_harm else _ENOUGH_AFTER


def data_in(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[int | str, Tensor]]:
    """Yield the tensors of floats, or token ids, in the words of a call that no gradient flows to, with their places.

    A place is the position, or the keyword; tensors within lists and dicts have the place of what holds them, dotted.
    """
    found = 0
    words: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in words:
        for place, tensor in _tensors(key, value):
            if _is_data(tensor):
                yield place, tensor
                found += 1
                if found == _MOST_TENSORS:
                    return


def _tensors(place: int | str, value: Any, depth: int = 0) -> Iterator[tuple[int | str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif depth < 3 and isinstance(value, tuple | list):
        for index, item in enumerate(value[:_MOST_TENSORS]):
            yield from _tensors(f"{place}[{index}]", item, depth + 1)
    elif depth < 3 and isinstance(value, dict):
        for key, item in list(value.items())[: 4 * _MOST_TENSORS]:
            yield from _tensors(f"{place}[{key!r}]", item, depth + 1)


def _is_data(tensor: Tensor) -> bool:
    return (
        (tensor.dtype in _PLAIN or tensor.dtype in _IDS)
        and 1 < tensor.numel() <= _LARGEST
        and (not tensor.requires_grad or (tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)))
        and tensor.layout is torch.strided
        and type(tensor) is torch.Tensor
        and tensor.device.type != "meta"
    )


def given(entry: Entry) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the words of a taped call, each tensor where it still lives, None in the place of others."""
    return [_unpacked(word) for word in entry.args or ()], {
        key: _unpacked(word) for key, word in (entry.kwargs or {}).items()
    }


def _unpacked(word: Any) -> Any:
    if type(word) is Given:
        return word.get()
    if hasattr(word, "tensor"):
        return word.tensor()
    if isinstance(word, tuple | list):
        return [_unpacked(item) for item in word]
    if isinstance(word, dict):
        return {key: _unpacked(item) for key, item in word.items()}
    return None
