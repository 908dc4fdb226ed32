"""Put the probes in place, right after torch was imported and before the script goes on (worker)."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nandiag.events import Armed
from nandiag.runtime import anomaly_mode, stacklevel
from nandiag.runtime.births.births import Births
from nandiag.runtime.births.files.wraps import watch_files
from nandiag.runtime.births.handed import Handed
from nandiag.runtime.collectives import stacks
from nandiag.runtime.collectives import wraps as collectives
from nandiag.runtime.collectives.lookout import LOOKOUT
from nandiag.runtime.collectives.placement import Placement, nccl_version
from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.guard import guarded, guarded_alone, safely
from nandiag.runtime.inject import ending
from nandiag.runtime.kernels.graphs import watch_graphs
from nandiag.runtime.lag.sentinel import LateSentinel
from nandiag.runtime.lag.withheld import WithholdingSentinel
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.weights import parameters
from nandiag.runtime.memory import weakly
from nandiag.runtime.memory.later.stored import Stored
from nandiag.runtime.names.standing import name_by_place
from nandiag.runtime.numeric import ear, warned
from nandiag.runtime.numeric.made import watch_fetches
from nandiag.runtime.numeric.taken import watch_taken
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.exchanges.hooked import watch_hooks
from nandiag.runtime.replay.exchanges.mail import MAIL
from nandiag.runtime.selftest.gpus import driver
from nandiag.runtime.steady.backwards import Backwards
from nandiag.runtime.tape import wraps
from nandiag.runtime.tape.batches import watch_batches
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.exchange import watch_exchanges
from nandiag.runtime.tape.wraps.functional import wrap_functional_grads
from nandiag.runtime.together.replicas import ReplicaCheck
from nandiag.runtime.tracebacks import pass_on
from nandiag.runtime.watch.behind.pretended import Pretended
from nandiag.runtime.watch.borders import behind_own
from nandiag.runtime.watch.scaler import watch_scaler
from nandiag.runtime.watch.sentinel import Sentinel
from nandiag.settings import place


def arm() -> Sentinel:
    """Install the sentinel's hooks and wraps; returns the sentinel. Raises when torch has not what they need."""
    capture = Capture()
    sentinel = (LateSentinel if RECORDER.settings.sentinel_lag else WithholdingSentinel)(RECORDER.settings, capture)
    pretended, plainly = Pretended(sentinel.losses), sentinel.borders.begins
    register_optimizer_step_pre_hook(behind_own(sentinel.before_step, plainly, capture, pretended.begins))
    register_optimizer_step_post_hook(guarded_alone("sentinel")(pretended.but_for(sentinel.after_step)))
    if place().world_size != 1:
        replicas = ReplicaCheck(sentinel.clock, capture, RECORDER.settings.check_replicas)
        register_optimizer_step_post_hook(guarded("replicas")(replicas.after_step))
    _stay_last(optimizers._global_optimizer_pre_hooks, "register_optimizer_step_pre_hook")
    _stay_last(optimizers._global_optimizer_post_hooks, "register_optimizer_step_post_hook")
    wraps.install(capture)
    watch_files(capture)
    sentinel.early.arm()
    _hear_numpy(capture)
    _watch_batches(sentinel, capture)
    watch_exchanges(capture)
    sentinel.judge.graphs = watch_graphs(capture, sentinel.weights.all_scalars)
    Handed(capture, sentinel.looker.examine_handed).watch()
    collectives.install()
    watch_hooks(capture)
    _watch_placement(sentinel, capture)
    _watch_swaps(sentinel, capture)
    _watch_standstill()
    _wrap_backward(sentinel, capture)
    _wrap_grad(sentinel, capture)
    wrap_functional_grads(capture, guarded_alone("sentinel")(sentinel.grad_called))
    _wrap_zero_grad(sentinel, capture)
    _wrap_optimizer_init(sentinel, capture)
    anomaly_mode.arm()
    watch_scaler(sentinel.clock.updates, sentinel.scaler_skipped, sentinel.scaled)
    _have_last_words(sentinel)
    RING.listeners.append(guarded("last look")(sentinel.last.begins))
    _watch_raise(sentinel)
    RECORDER.emit(_armed())
    _record_births(sentinel, capture)
    name_by_place()
    ending.on_leave(functools.partial(_let_go, capture))
    return sentinel


def _have_last_words(sentinel: Sentinel) -> None:
    ending.on_exit(sentinel.finish)
    ending.on_teardown(sentinel.last.at_exit)
    ending.on_hard_exit(guarded("last look")(sentinel.last.take_at_once))


def _watch_batches(sentinel: Sentinel, capture: Capture) -> None:
    """A script that exits on a bad loss lets go of its dataset before anybody can ask that again."""
    os.register_at_fork(after_in_child=capture.window.close)  # a worker of a DataLoader is forked in the open window
    batches, asked = watch_batches(capture), sentinel.left_out.asked
    capture.batches = batches
    ending.on_sys_exit(guarded("batches")(lambda: batches.hold() if asked.newest is not None else None))


def _hear_numpy(capture: Capture) -> None:
    """Remember what numpy complains of, and messages; in no replay.

    What is warned of stands where it would without us.
    """
    MAIL.watch(capture)

    def step() -> int | None:
        if capture.off:
            return None
        return warned.BEFORE if capture.births is not None and not capture.births.prelude.shut else capture.tape.step

    warned.install(step)
    stacklevel.install(torch)
    ear.install(sys.modules.get("numpy"))
    watch_fetches()


def _stay_last(hooks: dict[int, Any], name: str) -> None:
    """Have our hooks come behind those of the script's: what these make of gradients and weights is looked at."""
    original, ours = getattr(optimizers, name), list(hooks)

    @functools.wraps(original)
    def register(hook: Any) -> Any:
        handle = original(hook)
        for one in ours:
            if one in hooks:
                hooks[one] = hooks.pop(one)
        return handle

    setattr(optimizers, name, register)


def _record_births(sentinel: Sentinel, capture: Capture) -> None:
    """From now on see what the script writes into memory before it trains, and what its threads write."""
    births = capture.births = Births()
    sentinel.judge.on_bad_start = births.bad_from_the_start
    masks = sentinel.weights.masks
    masks.maker = capture.maker
    sentinel.looker.tells(masks)
    capture.window.wrote = _both(masks.laid, births.written)
    births.handed_out = capture.window.handed_out
    births.stored = Stored(capture, sentinel.looker.examine_handed)
    births.prelude.on_cut_short, births.prelude.on_gradients = capture.window.close, wraps.begins_early(capture)
    births.threads.begin()
    if RECORDER.settings.level == "op":
        births.saves.watched = sentinel.looker.live.maker
        births.prelude.shut = True  # each op of this thread is looked at in any case
    else:
        births.prelude.begin()
        watch_taken(births.prelude)


def _both(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        first(*args)
        second(*args)

    return call


def _armed() -> Armed:
    return Armed(
        torch=torch.__version__,
        probes=("sentinel", "scaler"),
        cuda=torch.version.cuda,
        nccl=nccl_version(),
        driver=driver(),
    )


@guarded("tape")
def _let_go(capture: Capture) -> None:
    """The process ends: what is held of the script's goes when it would without us, and its open files are written."""
    capture.off = True
    capture.window.close()
    capture.tape = capture.window.tape = Tape()
    capture.window.numbers.clear()
    capture.known, capture.exchanges = {}, []
    capture.batches.newest.clear()
    capture.batches.let_go()
    capture.batches = capture.births = capture.on_root = None


def _watch_placement(sentinel: Sentinel, capture: Capture) -> None:
    """Have it told where this rank computes and through what it talks: by its first forward call, else at its end."""
    known = sentinel.weights.known
    placement = Placement(lambda: (tensor for optimizer in known() for tensor in parameters(optimizer)))
    stock = capture.on_first_root

    def first_root() -> None:
        placement.tell()
        if stock is not None:
            stock()

    capture.on_first_root = first_root
    ending.on_raise(lambda _error, _step: placement.tell())
    ending.on_leave(placement.tell)


def _watch_swaps(sentinel: Sentinel, capture: Capture) -> None:
    """Let go of tensors that are about to take each other's content, which is refused where anybody refers to them.

    Modules and quantisers convert their weights by it.
    """
    here = threading.local()  # what has its tensor again behind a swap of this thread's

    def holders() -> Iterator[Callable[[tuple[Tensor, ...]], object]]:
        yield capture.tape.let_go
        yield sentinel.looker.live.let_go
        yield lambda _: capture.window.moved.clear()
        yield sentinel.bare.let_go
        yield sentinel.left_out.asked.let_go
        if capture.births is not None:
            yield functools.partial(_each, capture.births.record.forget)

    def begins(*args: Any, **kwargs: Any) -> None:
        tensors = tuple(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        here.again = []
        with quiet():
            if any(map(_is_held, tensors)):
                here.again = safely("tape", weakly.let_go, tensors) or []
                for holder in holders():
                    safely("tape", holder, tensors)  # each by itself: what failed keeps what it had in mind before

    torch.utils.swap_tensors = wraps.unseen(
        capture, _swapping(torch.utils.swap_tensors, here), functools.partial(safely, "tape", begins)
    )


def _is_held(tensor: Tensor) -> bool:
    """Whether anybody refers to it weakly, or has a view of it; True where this torch does not tell."""
    many = getattr(tensor, "_use_count", None)
    return many is None or weakref.getweakrefcount(tensor) > 0 or many() > 1


def _each(function: Callable[[Tensor], object], tensors: tuple[Tensor, ...]) -> None:
    for one in tensors:
        function(one)


def _swapping(original: Callable[..., Any], here: threading.local) -> Callable[..., Any]:
    """Return ``original`` as a call behind which those have their tensors ``again`` that refer to these yet."""

    def stay() -> None:
        again, here.again = getattr(here, "again", ()), ()
        for one in again:
            one()

    @functools.wraps(original)
    def swap(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            safely("tape", stay)

    return swap


def _watch_standstill() -> None:
    """Have it told where this rank stands: by its own thread, and by its stacks where a signal asks for them."""
    ending.on_raise(lambda error, _step: LOOKOUT.raised(error))
    ending.on_leave(LOOKOUT.leave)
    ending.on_hard_exit(LOOKOUT.leave, anywhere=True)
    ending.on_leave(stacks.leave)
    try:
        if (place().world_size or 1) > 1 or RECORDER.settings.hang_timeout:
            stacks.listen()
        if RECORDER.settings.hang_timeout:
            LOOKOUT.start()
    except Exception as error:
        RECORDER.dark("stacks", error)


def _watch_raise(sentinel: Sentinel) -> None:
    ends = guarded("sentinel")(sentinel.last.take)

    def raised(error: BaseException, step: int) -> None:
        del step
        ends(error)

    ending.on_raise(raised)


def _wrap_backward(sentinel: Sentinel, capture: Capture) -> None:
    original = torch.autograd.backward
    backwards = Backwards(sentinel, capture)

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(tensors, torch.Tensor | tuple | list):
            tensors = tuple(tensors)  # torch takes any iterable; it can be read only once
        plain = backwards.begins_plainly(tensors, args, kwargs)
        outermost = not plain and backwards.begins(tensors, args[0] if args else kwargs.get("grad_tensors"))
        taped = outermost and not capture.idle
        if taped:
            capture.backward_begins(((tensors, *args), kwargs), sys._getframe(1))
        try:
            original(tensors, *args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if plain:
            backwards.ended_plainly()
        elif outermost:
            backwards.ended(taped)

    torch.autograd.backward = backward


# What ``jacobian``, ``hessian``, ``vjp`` and their like take gradients in.
_DERIVATIVES = vars(torch.autograd.functional)
_functorch = torch._C._functorch.peek_interpreter_stack


def _wrap_grad(sentinel: Sentinel, capture: Capture) -> None:
    original = torch.autograd.grad
    sees, called = guarded_alone("sentinel")(sentinel.bare.sees), guarded_alone("sentinel")(sentinel.grad_called)
    made_in = guarded("tape")(capture.window.gradients_in)

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = tuple(outputs) if isinstance(outputs, Iterator) else outputs  # it can be gone through but once
        # A row of a Jacobian, say: what it is taken of is no loss. Nor is it within a transform.
        derived = sys._getframe(1).f_globals is _DERIVATIVES or _functorch() is not None
        if not (derived or sentinel.clock.has_optimizer):
            sees(outputs)
        made_in(sentinel.clock.step)
        try:
            gradients = original(outputs, inputs, *args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if not (derived or kwargs.get("create_graph")):
            called(outputs, gradients)
        return gradients

    torch.autograd.grad = grad


def _wrap_zero_grad(sentinel: Sentinel, capture: Capture) -> None:
    dropped = guarded("sentinel")(sentinel.gradients_dropped)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = wraps.dropping(capture, owner.zero_grad, dropped)  # type: ignore[method-assign]


def _wrap_optimizer_init(sentinel: Sentinel, capture: Capture) -> None:
    def tested() -> None:
        sentinel.left_out.asked.known = []  # it was those gradients that the script asked of
        sentinel._next_step()

    @guarded("sentinel")
    def met(optimizer: Any) -> None:
        sentinel.bare.optimizer_made(tested)
        if not sentinel.bare.has_updated:
            sentinel.clock.begins()
        sentinel.clock.made(optimizer)
        sentinel.weights.met(optimizer)
        sentinel.left_out.asked.ways.made(sys._getframe(1))
        capture.optimizer_made()

    _call_before(torch.optim.Optimizer, "__init__", met)
    _call_before(torch.optim.Optimizer, "load_state_dict", guarded("sentinel")(sentinel.weights.loaded))


def _call_before(owner: type, name: str, first: Callable[[Any], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        first(args[0] if args else None)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise

    setattr(owner, name, wrapper)
