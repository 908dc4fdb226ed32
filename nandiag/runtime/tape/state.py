"""What a call depends on besides its arguments: random generators, autocast, grad mode, buffers (worker)."""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.packing import HOOKS, packing
from nandiag.runtime.memory.there import all_there, held_of


class Generators(NamedTuple):
    """The states of torch's CPU and CUDA generators, of Python's, numpy's and the script's own where they are used."""

    cpu: Tensor
    cuda: tuple[tuple[int, Tensor], ...] | None
    python: Any = None
    numpy: Any = None
    private: tuple[tuple[torch.Generator, Tensor], ...] = ()

    def put_back(self) -> None:
        """Set every generator to the state kept here."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            for device, state in self.cuda:
                _set_on_device(state, device)
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random"].set_state(self.numpy)
        for generator, state in self.private:
            generator.set_state(state)


def generators(*, full: bool, private: Iterable[torch.Generator] = ()) -> Generators:
    """Take the states now; ``full`` adds Python's and numpy's (10 and 40 us), ``private`` are the script's own."""
    cuda = tuple((one, torch.cuda.get_rng_state(one)) for one in _cuda_used()) if _cuda() else None
    if not full and not private:
        return Generators(_cpu_state(), cuda)
    # To ask numpy itself would import them, and a child that another thread forks meanwhile would wait for that import.
    numpy = _numpy_random() if full else None
    return Generators(
        cpu=_cpu_state(),
        cuda=cuda,
        python=random.getstate() if full else None,
        numpy=None if numpy is None else numpy.get_state(),
        private=tuple((one, one.get_state()) for one in private),
    )


def _numpy_random() -> Any:
    """Return the module of numpy's generators, None where it was not imported; another thread may be at that."""
    module = sys.modules.get("numpy.random")
    return module if hasattr(module, "get_state") else None


_cpu_state = torch.default_generator.get_state


def _set_on_device(state: Tensor, device: int) -> None:
    """Set a device's generator, and have cuDNN's recurrent layers go on with the dropout that they are at.

    Whoever sets the state of the default generator itself has them begin anew, by a seed that they draw. Another
    generator on the same state (``graphsafe_get_state``, as CUDA graphs need it) sets that alone.
    """
    default = torch.cuda.default_generators[device]
    if hasattr(default, "graphsafe_get_state"):
        default.graphsafe_get_state().set_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _cuda() -> bool:
    # The flag is asked before the function, which is slower and tells a forked child apart.
    return bool(torch.cuda._initialized and torch.cuda.is_initialized())


def capturing() -> bool:
    """Whether what runs now is none of the training, and must not be looked at.

    A CUDA graph is being captured (what is computed would be part of it), torch tries modules on made-up memory, or a
    transform of ``torch.func`` runs, within which tensors have no values to read.
    """
    if _made_up or _functorch() is not None:
        return True
    return torch.cuda._initialized and _cuda() and torch.cuda.is_current_stream_capturing()


_made_up: list[object] = []
_functorch = torch._C._functorch.peek_interpreter_stack


@contextlib.contextmanager
def on_made_up_memory() -> Iterator[None]:
    """Mark that modules run on memory that nobody wrote, to learn shapes: what they make of it is no harm."""
    _made_up.append(None)
    try:
        yield
    finally:
        _made_up.pop()


def _cuda_used() -> list[int]:
    """Return the devices that this process has touched: to ask another one would cost memory there."""
    used = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return [one for one in range(torch.cuda.device_count()) if used is None or used(one)]


def python_used(before: Generators) -> bool:
    """Tell whether Python's or numpy's generator moved since ``before`` was taken in full."""
    if before.python != random.getstate():
        return True
    numpy = _numpy_random()
    if before.numpy is None or numpy is None:
        return numpy is not None  # it came in since, to be drawn from
    now = numpy.get_state()
    return bool(now[2] != before.numpy[2] or (now[1] != before.numpy[1]).any())


@dataclass(frozen=True, slots=True)
class Rules:
    """How DTensor treats ops: handlers of its dispatcher (``loss_parallel`` adds some) and whether it replicates."""

    handlers: dict[Any, Any]
    implicit: bool

    def put_in_place(self) -> None:
        """Have DTensor's dispatcher follow these rules."""
        dispatcher = _dispatcher()
        dispatcher._custom_op_handlers.clear()
        dispatcher._custom_op_handlers.update(self.handlers)
        dispatcher._allow_implicit_replication = self.implicit


_known_rules: dict[tuple[Any, ...], Rules] = {}


def rules() -> Rules | None:
    """Return DTensor's present rules, None where no DTensor was ever imported or torch keeps them elsewhere."""
    dispatcher = _dispatcher()
    if dispatcher is None:
        return None
    key = (dispatcher._allow_implicit_replication, *dispatcher._custom_op_handlers)
    known = _known_rules.get(key)
    if known is None:
        known = _known_rules[key] = Rules(dict(dispatcher._custom_op_handlers), key[0])
    return known


def _dispatcher() -> Any:
    module = sys.modules.get("torch.distributed.tensor")
    dispatcher = getattr(getattr(module, "DTensor", None), "_op_dispatcher", None)
    whole = hasattr(dispatcher, "_custom_op_handlers") and hasattr(dispatcher, "_allow_implicit_replication")
    return dispatcher if whole else None


Modes = tuple[bool, bool, Any, bool, Any, bool, Any, Any]


def _unknown() -> bool:
    """Stand in where this torch cannot tell whether autocast is on anywhere: each kind of it is asked then."""
    return True


# The usual case, made once: taking autocast's state costs ten times as much as asking whether any is on.
any_autocast = getattr(torch._C, "_is_any_autocast_enabled", _unknown)
_PLAIN = (False, torch.bfloat16, False, torch.float16, True)
_grad_enabled = torch.is_grad_enabled


def under_autocast() -> bool:
    """Whether autocast is on here; not so where an op is dispatched."""
    return any_autocast() and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


class _Usual(NamedTuple):
    """What :func:`modes` is where autocast is off, as long as DTensor's ``dispatcher`` keeps to ``rules``."""

    rules: Rules | None
    dispatcher: Any
    handlers: int
    without: Modes
    with_grad: Modes


_usual = [_Usual(None, None, 0, (False, *_PLAIN, None, None), (True, *_PLAIN, None, None))]


def plain_modes(*, grad: bool) -> Modes:
    """Return what :func:`modes` did where it was the ``grad`` mode alone."""
    return _usual[0].with_grad if grad else _usual[0].without


def modes() -> Modes:
    """Return (grad, autocast: cpu on, cpu dtype, cuda on, cuda dtype, weight cache on; DTensor's rules; packing)."""
    usual = _usual[0]
    dispatcher = usual.dispatcher
    if (
        dispatcher is None
        or len(dispatcher._custom_op_handlers) != usual.handlers
        or dispatcher._allow_implicit_replication is not usual.rules.implicit  # type: ignore[union-attr]
    ):
        usual = _usual[0] = _renewed()
    if not HOOKS and not any_autocast():
        return usual.with_grad if _grad_enabled() else usual.without
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        usual.rules,
        packing(),
    )


def _renewed() -> _Usual:
    known = rules() if "torch.distributed.tensor" in sys.modules else None
    if known is None:
        return _usual[0]
    plain = (*_PLAIN, known, None)
    return _Usual(known, _dispatcher(), len(known.handlers), (False, *plain), (True, *plain))


@contextlib.contextmanager
def under(kept: Modes) -> Iterator[None]:
    """Run under the modes kept."""
    grad, cpu, cpu_dtype, cuda, cuda_dtype, cache, dtensor, packed = kept
    with contextlib.ExitStack() as stack:
        now = rules() if dtensor is not None else None
        if dtensor is not now and now is not None:
            dtensor.put_in_place()
            stack.callback(now.put_in_place)
        stack.enter_context(torch.set_grad_enabled(grad))
        # Where it was off the dtype that the script may have set for all is still set.
        cpu_dtype, cuda_dtype = cpu_dtype if cpu else None, cuda_dtype if cuda else None
        stack.enter_context(torch.autocast("cpu", enabled=cpu, dtype=cpu_dtype, cache_enabled=cache))
        if cuda or _cuda():
            stack.enter_context(torch.autocast("cuda", enabled=cuda, dtype=cuda_dtype, cache_enabled=cache))
        if packed is not None:
            stack.enter_context(saved_tensors_hooks(*packed))
        yield


_SMALL = 1 << 16


_SIMPLE = (int, float, bool, str, type(None))
Names: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


class Attributes:
    """What modules may set anew when they run (counters, flags, tensors), so that a replay does not see it moved on."""

    def __init__(self, module: nn.Module) -> None:
        self._kept = [(one, _settable(one)) for one in module.modules()]

    def changed(self) -> list[nn.Module]:
        """Return the modules one of whose attributes or buffers is not what it was."""
        return [module for module, kept in self._kept if any(map(_is_anew, _settable(module), kept))]


class Stock:
    """The same, of a module that it does not keep alive, nor its parts."""

    def __init__(self, module: nn.Module) -> None:
        self._kept = [(weakref.ref(one), [_kept(names) for names in _holders(one)]) for one in module.modules()]

    def __len__(self) -> int:
        """How many modules there are."""
        return len(self._kept)

    def changed(self, but: Container[int]) -> list[nn.Module]:
        """Return the modules that hold another thing now where they held one then, but for those ``but``."""
        there = [(one, kept) for held, kept in self._kept if (one := held()) is not None and id(one) not in but]
        return [one for one, kept in there if any(map(_given_up, _holders(one), kept))]

    def set_anew(self, but: Container[int]) -> list[Names]:
        """Return what modules held that hold another thing there now, but for those ``but``, by their ``id``."""
        there = [(one, kept) for held, kept in self._kept if (one := held()) is not None and id(one) not in but]
        pairs = [pair for one, kept in there for pair in zip(_holders(one), kept, strict=True)]
        return [(names, old) for names, before in pairs if (old := _given_up(names, before))]


def _holders(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module.__dict__, module._buffers


def _given_up(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {
        name: old
        for name, old in before.items()
        if name in now and now[name] is not old and _differs(now[name], old)
    }  # fmt: skip


def _settable(module: nn.Module) -> list[Names]:
    """Return the plain attributes, and the tensors that are attributes or buffers, with where they lie."""
    return [(names, _kept(names)) for names in _holders(module) if names]


def _kept(names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if type(value) in _SIMPLE or _is_held(value)}


def _is_held(value: Any) -> bool:
    """Whether it is a tensor that the module would hold on to: a graph, or a large one, would outlive its time."""
    return isinstance(value, Tensor) and value.numel() <= _SMALL and is_leaf(value)


def _is_anew(now: Names, before: Names) -> bool:
    if now[1].keys() != before[1].keys():
        return True
    return any(value is not (old := before[1][name]) and _differs(value, old) for name, value in now[1].items())


def _differs(value: Any, old: Any) -> bool:
    return isinstance(value, Tensor) or isinstance(old, Tensor) or value != old


def keep_attributes(modules: list[nn.Module]) -> list[Names]:
    """Take what a few modules, known to do so, may set anew."""
    return [names for module in modules for names in _settable(module)]


def set_attributes(kept: Sequence[Names]) -> None:
    """Put back what :func:`keep_attributes` took."""
    for names, values in kept:
        names.update(values)


_MAPS = (dict, OrderedDict, Counter, defaultdict)
_LISTS = (list, deque, set)
_LARGEST = 1 << 24


class Contents:
    """All attributes of all modules below ``roots``, so that a replay can move what it likes.

    Parameters, buffers, hooks and submodules lie in plain containers among them, whose members are kept by identity. Of
    tensors that are plain attributes the values are kept too, up to 16M elements each.
    """

    def __init__(self, roots: list[nn.Module]) -> None:
        modules = {id(module): module for root in roots for module in root.modules()}.values()
        held = [vars(module) for module in modules]
        inner = [value for names in held for value in names.values() if type(value) in (*_MAPS, *_LISTS)]
        self._maps = [(one, list(one.items())) for one in (*held, *inner) if type(one) in _MAPS]
        self._lists = [(one, list(one)) for one in inner if type(one) in _LISTS]
        self.tensors = [value for names in held for value in names.values() if _is_value(value)]
        self._values = [(one, one._version, one.detach().clone()) for one in self.tensors]

    def put_back(self) -> None:
        """Put everything back that is not as it was; the caller keeps gradients off."""
        for one, items in self._maps:
            if not _same([*one.keys(), *one.values()], [*(key for key, _ in items), *(value for _, value in items)]):
                one.clear()
                for key, value in items:
                    one[key] = value
        for many, members in self._lists:
            if not _same(list(many), members):
                many.clear()
                (many.update if isinstance(many, set) else many.extend)(members)
        for tensor, version, value in self._values:
            if tensor._version != version and all_there([tensor]):
                tensor.detach().copy_(value)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether what this rank holds of two tensors is there and the same; of DTensors ``torch.equal`` asks all ranks."""
    return all_there((one, other)) and torch.equal(held_of(one), held_of(other))


def _is_value(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_inference() or value.numel() > _LARGEST:
        return False
    return all_there([value])  # FSDP1 leaves views of memory that it has freed


def _same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))
