"""The wraps that tell the ring of each collective, put in place once, right after torch was imported (worker).

Only calls in Python are seen, and of nested ones (``all_gather_object`` is made of ``all_gather``) the outermost. A
wrap costs about 5 us and passes straight on under ``torch.compile`` and where nandiag is mute.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from nandiag.events.standing import DONE, ISSUED, RAISED
from nandiag.runtime.collectives.lookout import LOOKOUT
from nandiag.runtime.collectives.ring import MOST_SHAPES, RING, Call, user_frame
from nandiag.runtime.collectives.works.waited import WAITED
from nandiag.runtime.guard import disarm
from nandiag.runtime.inject.after_import import after_import
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tracebacks import pass_on

# Each collective with the names, of its parameters, that may hold the tensors that a rank puts in.
_COLLECTIVES = {
    "all_reduce": "tensor", "all_reduce_coalesced": "tensors", "broadcast": "tensor", "reduce": "tensor",
    "all_gather": "tensor", "all_gather_into_tensor": "input_tensor", "all_gather_single": "input_tensor",
    "all_gather_coalesced": "input_tensor_list", "reduce_scatter": "input_list", "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input", "all_to_all": "input_tensor_list", "all_to_all_single": "input",
    "gather": "tensor", "scatter": "tensor", "barrier": "", "monitored_barrier": "", "all_gather_object": "",
    "broadcast_object_list": "", "gather_object": "", "scatter_object_list": "", "init_process_group": "",
    "new_group": "", "split_group": "", "destroy_process_group": "",
}  # fmt: skip
_FUNCTIONAL = {
    "all_reduce": "self", "broadcast": "self", "all_gather_tensor": "self", "all_gather_tensor_autograd": "self",
    "all_gather_single": "self", "all_gather_single_autograd": "self", "all_gather_single_coalesced": "self",
    "reduce_scatter_tensor": "self", "reduce_scatter_tensor_autograd": "self", "reduce_scatter_single": "self",
    "reduce_scatter_single_autograd": "self", "reduce_scatter_single_coalesced": "inputs",
    "all_reduce_coalesced": "self", "all_gather_into_tensor_coalesced": "self",
    "reduce_scatter_tensor_coalesced": "inputs", "all_to_all_single": "self", "all_to_all_single_autograd": "self",
    "permute_tensor": "self",
}  # fmt: skip
_SENDS = {"send": True, "isend": True, "send_object_list": True}
_MESSAGES = {**_SENDS, "recv": False, "irecv": False, "recv_object_list": False}
_BATCH = "batch_isend_irecv"
_WORKS = frozenset({"isend", "irecv", _BATCH})
_STOOD_IN = _WORKS | {"send", "recv"}
_PEERS = ("src", "dst", "group_src", "group_dst")
_FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"
_UNKNOWN = object()
# What they write holds this rank's own part already.
_IN_PLACE = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "barrier"})
# Those of c10d that lay this rank's own part down among the others', and those that keep its own part of a sum.
_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "all_gather_single"})
_SCATTERS = frozenset({"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"})
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_NOTHING = contextlib.nullcontext()
_depth = threading.local()
_stacked, _mode_at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a function takes its group, tensors, peer and reduction: (position, name) each, None where it has none.

    ``first`` is where it takes what comes first: of a gather or a scatter what it writes.
    """

    op: str
    first: tuple[int, str]
    group: tuple[int, str] | None
    tensors: tuple[int, str] | None
    reduce: tuple[int, str] | None
    later: tuple[int, str] | None
    peers: tuple[tuple[int, str], ...]
    resolve: Callable[[Any], Any] | None
    left_out: bool  # by :func:`alone`


class LeftOut:
    """Stands for the work of a collective that was not made: there is nothing to wait for."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Say that it is over."""
        return True

    def get_future(self) -> torch.futures.Future[None]:
        """Return one that is done."""
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done


class Alone:
    """The collectives that a thread left out, for no other rank calls them now; ``given``: what others would have.

    ``arrives`` is told of each such tensor at once.
    """

    def __init__(self, arrives: Callable[[torch.Tensor], None] | None = None) -> None:
        self.given: list[torch.Tensor] = []
        self._arrives = arrives

    def leave_out(self, shape: _Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LeftOut | None:
        """Note that one is not made; returns what its caller may wait for."""
        tensor = _taken(args, kwargs, (0, "tensor"))
        source = _taken(args, kwargs, (1, "src")) if shape.op == "broadcast" else None
        if isinstance(tensor, torch.Tensor) and source is not None and source != dist.get_rank():
            self._given(tensor)
        if shape.op in _GATHERS or shape.op in _SCATTERS:
            self._lay(shape, args, kwargs)
        return LeftOut() if _taken(args, kwargs, shape.later) else None

    def _given(self, tensor: torch.Tensor) -> None:
        self.given.append(tensor)
        if self._arrives is not None:
            self._arrives(tensor)

    def _lay(self, shape: _Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lay down this rank's own part; what the others would have laid beside it stays as it is."""
        group = _taken(args, kwargs, shape.group)
        rank, count = dist.get_rank(group), dist.get_world_size(group)
        written, put = _taken(args, kwargs, shape.first), _taken(args, kwargs, shape.tensors)
        gathers = shape.op in _GATHERS
        written, put = (_parts(written, count), [put] * count) if gathers else ([written] * count, _parts(put, count))
        with torch.no_grad():
            written[rank].copy_(put[rank].reshape(written[rank].shape))
        with quiet():
            bad = is_bad(put[rank])
        if gathers and not bad:
            for one in (*written[:rank], *written[rank + 1 :]):
                self._given(one)


@contextlib.contextmanager
def alone(arrives: Callable[[torch.Tensor], None] | None = None) -> Iterator[Alone]:
    """Leave out the collectives of c10d's that this thread calls; ``arrives``: see :class:`Alone`."""
    before, made = getattr(_depth, "inside", False), Alone(arrives)
    _depth.inside = made
    try:
        yield made
    finally:
        _depth.inside = before


@contextlib.contextmanager
def uncounted(mail: Any = None) -> Iterator[None]:
    """Leave what this thread calls out of the ring: a replay's calls are none of the script's.

    ``mail``: its ``stand_in`` is called in the place of what sends or receives a message.
    """
    before = getattr(_depth, "inside", False)
    _depth.inside = before or mail or True  # :func:`alone` goes on within
    try:
        yield
    finally:
        _depth.inside = before


def install() -> None:
    """Wrap the functions of ``torch.distributed``, and the functional collectives once they are imported."""
    if not dist.is_available():
        return
    home = dist.distributed_c10d
    for name in (*_COLLECTIVES, *_MESSAGES, _BATCH):
        original = getattr(home, name, None)
        if original is None:
            continue
        wrapped = _wrapped(original, _shape(name, original, _COLLECTIVES.get(name, "tensor")))
        setattr(home, name, wrapped)
        if getattr(dist, name, None) is original:
            setattr(dist, name, wrapped)
    after_import(_FUNCTIONAL_MODULE, _install_functional)


def _install_functional(module: Any) -> None:
    try:
        for name, tensors in _FUNCTIONAL.items():
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, _wrapped(original, _shape(name, original, tensors, _resolver(module))))
    except Exception as error:
        disarm("collectives", error)


def _resolver(module: Any) -> Callable[[Any], Any]:
    def resolve(group: Any) -> Any:
        if isinstance(group, dist.ProcessGroup) or group is None:
            return group
        if isinstance(group, list):
            return _UNKNOWN  # ranks without a group: to look one up may make it
        name = module._resolve_group_name(group, "")
        return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined]

    return resolve


def _shape(op: str, function: Any, tensors: str, resolve: Callable[[Any], Any] | None = None) -> _Shape:
    names = list(inspect.signature(function).parameters)

    def at(name: str) -> tuple[int, str] | None:
        return (names.index(name), name) if name in names else None

    peers = tuple(place for name in _PEERS if (place := at(name)) is not None)
    reduce, left_out = at("op") or at("reduceOp"), op in _IN_PLACE | _GATHERS | _SCATTERS and resolve is None
    return _Shape(
        op, (0, names[0] if names else ""), at("group"), at(tensors), reduce, at("async_op"), peers, resolve, left_out
    )


def _wrapped(original: Callable[..., Any], shape: _Shape) -> Callable[..., Any]:
    # Whatever of ours is called here lets no error of ours out: nothing is above it but the script.
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        inside = getattr(_depth, "inside", False)
        if torch.compiler.is_compiling() or RECORDER.mute or inside:
            if shape.left_out and type(inside) is Alone:
                return inside.leave_out(shape, args, kwargs)
            if shape.op in _STOOD_IN and hasattr(inside, "stand_in"):
                return inside.stand_in(shape.op, args, kwargs)
            return original(*args, **kwargs)
        caller = sys._getframe(1)
        calls = _begin(shape, args, kwargs, caller)
        _depth.inside = True
        try:
            _hand_over(shape, calls, (args, kwargs), caller)
            with _shield(shape, args):
                result = original(*args, **kwargs)
        except BaseException as error:
            _end(calls, RAISED, error)
            pass_on(error)
            raise
        finally:
            _depth.inside = False
        _ended(shape, calls, (args, kwargs), caller, result)
        return result

    return collective


def _hand_over(shape: _Shape, calls: list[Call], words: tuple[Any, Any], caller: FrameType) -> None:
    try:
        for hand in RING.handing if calls and shape.resolve is None else ():
            hand(calls, *words, caller)
    except Exception as error:
        disarm("collectives", error)


def _shield(shape: _Shape, args: tuple[Any, ...]) -> contextlib.AbstractContextManager[Any]:
    """Return what keeps our window from being asked about each thing that torch asks of a plain tensor on the way.

    Where a mode of the script's own is there, or a tensor of its own class, all are asked.
    """
    try:
        if shape.resolve is not None or not args or type(args[0]) not in _PLAIN:
            return _NOTHING
        if _stacked() != 1 or _mode_at(0) is not RING.window:
            return _NOTHING
        RING.window.calls += 1  # one of the loop's, in its budget
        return torch._C.DisableTorchFunction()
    except Exception as error:
        disarm("collectives", error)
        return _NOTHING


def _ended(shape: _Shape, calls: list[Call], words: tuple[Any, Any], caller: FrameType, result: Any) -> None:
    """A call returned: note it, and tell of it."""
    try:
        later = shape.op in _WORKS or bool(_taken(*words, shape.later))
        _end(calls, ISSUED if later else DONE)
        if shape.op in _WORKS:
            WAITED.begun(calls, result)
        if shape.resolve is None:  # a functional collective writes into none of its arguments
            with torch._C.DisableTorchFunction():
                for listener in RING.ended:
                    listener(shape.op, *words, caller)
        if shape.op == "destroy_process_group" and not dist.is_initialized():
            RING.forget()
    except Exception as error:
        disarm("collectives", error)


def _begin(shape: _Shape, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> list[Call]:
    try:
        if RECORDER.is_dark("collectives"):
            return []
        if not LOOKOUT.started:
            LOOKOUT.start()
        # What is asked of tensors here must be seen by no function mode, the script's or ours.
        with torch._C.DisableTorchFunction():
            if shape.op == _BATCH:
                return [_message(one, frame) for one in _taken(args, kwargs, (0, "p2p_op_list")) or ()]
            return [_begin_one(shape, args, kwargs, frame)]
    except Exception as error:
        disarm("collectives", error)
        return []


def _end(calls: list[Call], state: str, error: BaseException | None = None) -> None:
    try:
        for call in calls:
            RING.end(call, state, None if error is None else f"{type(error).__name__}: {error}"[:500])
    except Exception as failure:
        disarm("collectives", failure)


def _begin_one(shape: _Shape, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Call:
    group = _taken(args, kwargs, shape.group)
    alone = bool(kwargs.get("use_local_synchronization"))
    known = None if alone else RING.group(shape.resolve(group) if shape.resolve else group)
    call = Call(shape.op, known, user_frame(frame))
    _describe(call, _taken(args, kwargs, shape.tensors))
    call.functional = shape.resolve is not None
    call.reduce = _taken(args, kwargs, shape.reduce)
    if shape.peers:
        call.peer = _peer(call, [(name, _taken(args, kwargs, (at, name))) for at, name in shape.peers])
    return RING.begin(call, sent=_MESSAGES.get(shape.op))


def _message(one: Any, frame: FrameType) -> Call:
    """Add one message of a batch; it counts as one that was sent or asked for by itself."""
    op = getattr(one.op, "__name__", "")
    call = Call(op, RING.group(one.group), user_frame(frame))
    call.peer = one.peer
    _describe(call, one.tensor)
    return RING.begin(call, sent=_MESSAGES.get(op, False))


def _taken(args: tuple[Any, ...], kwargs: dict[str, Any], place: tuple[int, str] | None) -> Any:
    if place is None:
        return None
    at, name = place  # as argument() has it: asked several times of each call
    return args[at] if at < len(args) else kwargs.get(name)


def _describe(call: Call, value: Any) -> None:
    """Note what the tensors are that were put in: the first few."""
    given = value if isinstance(value, tuple | list) else (value,)
    few = [one for one in given[:MOST_SHAPES] if isinstance(one, torch.Tensor)]
    call.shapes = tuple(one.shape for one in few)
    call.dtype = few[0].dtype if few else None


def _parts(given: Any, count: int) -> Sequence[torch.Tensor]:
    """Return one tensor for each of the ``count`` ranks: a list of them, or what lies one behind the other in one."""
    return given if isinstance(given, list | tuple) else given.view(-1).chunk(count)


def _peer(call: Call, given: list[tuple[str, Any]]) -> int | None:
    """Return the peer as a global rank: ``src`` and ``dst`` are such, ``group_src`` and ``group_dst`` count members."""
    for name, value in given:
        if isinstance(value, int):
            members = call.group.members if call.group and name.startswith("group_") else None
            return members[value] if members and 0 <= value < len(members) else value
    return None
