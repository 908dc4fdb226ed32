"""Which samples of which dataset a batch was made of, for the newest few batches (worker).

The window is shut while a DataLoader fetches: collating a batch makes a hundred torch calls that need not be taped.
"""

from __future__ import annotations

import functools
import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import dataloader

from nandiag.runtime.guard import guarded
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.numeric.made import MADE
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.state import Generators, generators
from nandiag.runtime.tracebacks import pass_on

_KEPT = 8
_ITERATOR = dataloader._BaseDataLoaderIter


class Streamed(NamedTuple):
    """Where in a stream a batch stood: the ``ordinal``-th of a ``worker`` (None: of the process itself), from 0 on."""

    worker: int | None
    ordinal: int
    workers: int
    base_seed: int
    init: Callable[[int], object] | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: its tensors by name, its dataset and indices, how it was put together, the generators then.

    All but the last three are held weakly: a script that lets go of a dataset may need its memory for the next one.
    """

    tensors: tuple[tuple[str, Weakly], ...]
    held: tuple[Callable[[], Any], Callable[[], Any]]
    mapped: bool
    collated: bool
    indices: Any
    states: Generators
    streamed: Streamed | None = None

    @property
    def dataset(self) -> Any:
        """The dataset; None once the script has let go of it."""
        return self.held[0]()

    @property
    def collate(self) -> Any:
        """What puts samples together, as long as the script has it."""
        return self.held[1]()

    def name(self, storage: int) -> str | None:
        """Return what the tensor in the memory ``storage`` is called within the batch, None where it is no part."""
        held = ((name, reference()) for name, reference in self.tensors)
        return next((name for name, tensor in held if tensor is not None and _lies_in(tensor, storage)), None)


class Batches:
    """The newest batches of every DataLoader of this process."""

    def __init__(self) -> None:
        self.newest: deque[Batch] = deque(maxlen=_KEPT)
        self._held: list[tuple[Any, Any]] = []
        self._asked: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()

    @guarded("batches")
    def asked(self, iterator: Any, indices: Any) -> None:
        """The iterator is about to fetch the samples at ``indices``; batches come back in the order asked for."""
        self._asked.setdefault(iterator, deque()).append(indices)

    @guarded("batches")
    def hold(self) -> None:
        """Keep the datasets while the script exits, or until it fetches again: its functions let go of them."""
        self._held = [(one.dataset, one.collate) for one in tuple(self.newest)]

    def let_go(self) -> None:
        """Hold no dataset any longer than the script does."""
        self._held.clear()

    def begun(self, iterator: Any) -> None:
        """The iterator begins an epoch: batches that it asked for and that nobody took will not come any more."""
        self._asked.pop(iterator, None)

    @guarded("batches")
    def came(self, iterator: Any, data: Any, states: Generators) -> None:
        """The iterator returned the batch that it asked for first."""
        asked = self._asked.get(iterator)
        indices = asked.popleft() if asked else None
        tensors = tuple((name, Weakly(tensor)) for name, tensor in _named(data))
        if getattr(iterator, "_num_workers", 0):
            MADE.drain()  # a full pipe takes no more
        if tensors:
            mapped = iterator._dataset_kind == dataloader._DatasetKind.Map
            made = (_weakly(iterator._dataset), _weakly(iterator._collate_fn)), mapped, iterator._auto_collation
            self.newest.append(Batch(tensors, *made, indices, states, None if mapped else _streamed(iterator)))

    def of(self, storage: int) -> Batch | None:
        """Return the batch one of whose tensors lies in the memory ``storage``, None when no batch kept does."""
        there = (batch for batch in reversed(tuple(self.newest)) if batch.name(storage) is not None)
        return next((batch for batch in there if batch.dataset is not None), None)


def _weakly(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(thing) if isinstance(thing, MethodType) else weakref.ref(thing)
    except TypeError:  # a list, or of a class with slots
        return lambda: thing


def _streamed(iterator: Any) -> Streamed | None:
    """Return where in its stream the batch stood that the iterator returned last; workers take turns."""
    workers = iterator._num_workers
    if not workers:
        return Streamed(None, iterator._num_yielded - 1, 0, 0, None)
    began = getattr(type(iterator._workers[0]), "_start_method", None) or multiprocessing.get_start_method()
    if began != "fork":
        return None  # a worker that began anew has not what this process holds
    number = iterator._rcvd_idx - 1
    return Streamed(number % workers, number // workers, workers, iterator._base_seed, iterator._worker_init_fn)


def _lies_in(tensor: Tensor, storage: int) -> bool:
    return tensor.layout is torch.strided and bool(tensor.untyped_storage()._cdata == storage)


def _named(data: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch with the script's way to each of the upper ones: ``batch[1]``, ``batch['x']``."""
    if isinstance(data, Tensor):
        return [("batch", data)]
    many = (
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, tuple | list) else [("", data)]
    )
    return [(f"batch[{key!r}]" if key != "" else "batch", tensor) for key, item in many for tensor in tensors_in(item)]


def watch_batches(capture: Capture) -> Batches:
    """Wrap the DataLoader's iterator; returns where its batches are kept."""
    batches = Batches()
    _wrap_begin()
    _wrap_index(batches)
    _wrap_reset(batches)
    _wrap_next(capture, batches)
    return batches


def _wrap_begin() -> None:
    original = _ITERATOR.__init__
    expect = guarded("batches")(MADE.expect)

    @functools.wraps(original)
    def begin(self: Any, loader: Any) -> None:
        if loader.num_workers:
            expect()
        original(self, loader)

    _ITERATOR.__init__ = begin  # type: ignore[method-assign]


def _wrap_index(batches: Batches) -> None:
    original = _ITERATOR._next_index

    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        try:
            indices = original(self)  # type: ignore[no-untyped-call]
        except BaseException as error:
            pass_on(error)
            raise
        batches.asked(self, indices)
        return indices

    _ITERATOR._next_index = next_index  # type: ignore[method-assign]


def _wrap_reset(batches: Batches) -> None:
    original = _ITERATOR._reset

    @functools.wraps(original)
    def reset(self: Any, *args: Any, **kwargs: Any) -> None:
        batches.begun(self)
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    _ITERATOR._reset = reset  # type: ignore[method-assign]


def _wrap_next(capture: Capture, batches: Batches) -> None:
    original = _ITERATOR.__next__
    reopen = guarded("batches")(capture.window.open)

    @guarded("batches")
    def begins() -> tuple[Generators, bool] | None:
        batches.let_go()
        states = generators(full=False)
        return states, capture.window.on and not capture.idle and capture.window.close()

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        begun = begins()
        try:
            data = original(self)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            if begun is not None and begun[1]:
                reopen()
        if begun is not None:
            batches.came(self, data, begun[0])
        return data

    _ITERATOR.__next__ = next_batch  # type: ignore[method-assign]
