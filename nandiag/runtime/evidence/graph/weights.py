"""What an op of forward was given is made of, by autograd's graph: of weights that are trained, or of data (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from nandiag.events import words
from nandiag.runtime.evidence.op import Op, given_of
from nandiag.runtime.frames import Frame
from nandiag.runtime.guard import sparing
from nandiag.runtime.memory.there import all_there

# What only a number that is not negative has.
OF_POSITIVE = frozenset({"log", "log2", "log10", "sqrt", "rsqrt"})
_SUM = 2  # as torch counts reductions
_DIVISIONS, _PAIR, _NODES = frozenset({"div", "true_divide", "divide"}), 2, 3


@sparing
def of_weights(op: Op, losses: Iterable[Tensor] = ()) -> dict[str, object]:
    """Return whether a gradient goes back from an op of forward, that is, to a weight that is trained.

    Without one it is made of data or constants, or of weights without gradients: a teacher's, or detached. Within the
    forward of a ``torch.autograd.Function``, and behind a tensor subclass, no op has one, and that says nothing; nor
    where checkpointing that is reentrant lies in the graph of the ``losses``: whole modules run in such a forward.

    ``made_by`` names the autograd nodes that made the first input, the last one first; ``below_by`` those of a divisor.
    """
    given = given_of(op)
    if not given or op.spot.node is not None:
        return {}
    trained = any(tensor.requires_grad for tensor in given)
    if not trained and (op.apart or _in_function(op.spot.frames) or any(map(_is_reentrant, losses))):
        return {}
    below = {"below_by": _made_by(given[1])} if len(given) == _PAIR and _is_division(op) else {}
    return {"of_weights": trained, "made_by": _made_by(given[0]), **below}


@sparing
def summed(losses: Iterable[Tensor]) -> dict[str, object]:
    """Return whether each of the ``losses`` is a sum over several values: so are the gradients, with them."""
    last = [_uncast(loss.grad_fn) for loss in losses]
    return {"loss_summed": True} if last and all(map(_is_sum, last)) else {}


def _uncast(node: Any) -> Any:
    while node is not None and type(node).__name__.startswith("ToCopyBackward"):
        node = node.next_functions[0][0]
    return node


def _is_sum(node: Any) -> bool:
    several = math.prod(getattr(node, "_saved_self_sym_sizes", ())) > 1
    summed_up = type(node).__name__ == "SumBackward0" and several
    return summed_up or getattr(node, "_saved_reduction", None) == _SUM


def _is_reentrant(loss: Tensor) -> bool:
    waiting, seen = [loss.grad_fn], set[Any]()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ == _CHECKPOINT:
            return True
        seen.add(node)
        waiting.extend(before for before, _ in node.next_functions)
    return False


@sparing
def few_weights(op: Op, name: Callable[[Tensor], str | None]) -> dict[str, object]:
    """Return which of the weights are below 0 in places, where the op was given what is made of very few small ones.

    And those ``beside`` them, that are not kept above it either.
    """
    given = given_of(op)
    if not given or op.spot.node is not None or words.op(str(op.func)).rstrip("_") not in OF_POSITIVE:
        return {}
    leaves = _leaves(given[0])
    if leaves is None or any(leaf.numel() > _SMALL_WEIGHT for leaf in leaves) or not all_there(leaves):
        return {}
    named = [told for leaf in leaves if bool((leaf.detach() < 0).any()) and (told := name(leaf)) is not None]
    beside = [told for leaf in leaves if (told := name(leaf)) is not None and told not in named] if named else []
    return {"below_zero": named, **({"beside": beside} if beside else {})} if named else {}


_CHECKPOINT = "CheckpointFunctionBackward"
_ANY_SIGN = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addmv", "Mv", "Dot", "Convolution", "Linear", "Log", "Sin", "Cos",
             "NativeLayerNorm", "NativeBatchNorm", "NativeGroupNorm", "Erfinv", "Lgamma")  # fmt: skip
_KEPT_POSITIVE = frozenset({"Exp", "Exp2", "Softmax", "Softplus", "Sigmoid", "Abs"})
_SMALL_WEIGHT, _MOST_LEAVES, _MOST_NODES = 64, 3, 2000


def _leaves(tensor: Tensor) -> list[Tensor] | None:
    """Return the variables that a gradient goes back to; None where these are more than a few, or not all seen.

    Nor behind a linear layer or a logarithm, say, of which any sign may come though each of them were positive. Those
    that an exponential, a softmax or a square keeps positive already are left out: they may be below 0.
    """
    waiting, seen, found = [tensor.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith(_ANY_SIGN):
            return None
        if _keeps_positive(node):
            continue
        variable = getattr(node, "variable", None)
        found += [] if variable is None else [variable]
        if len(found) > _MOST_LEAVES or len(seen) > _MOST_NODES:
            return None
        waiting.extend(before for before, _ in node.next_functions)
    return found


def _keeps_positive(node: Any) -> bool:
    kind = node.name().partition("Backward")[0]
    if kind != "Pow":
        return kind in _KEPT_POSITIVE
    try:
        exponent = getattr(node, "_saved_exponent", 1)
    except RuntimeError:  # a tensor, which the backward has let go of
        return False
    return isinstance(exponent, int | float) and exponent % 2 == 0


def _is_division(op: Op) -> bool:
    return words.op(str(op.func)).rstrip("_") in _DIVISIONS


def _in_function(frames: Iterable[Frame]) -> bool:
    """Whether one of the frames is the forward of a ``torch.autograd.Function``, which runs without gradients."""
    codes = {frame.code for frame in frames if frame.code.co_name == "forward"}
    return bool(codes) and any(getattr(one.forward, "__code__", None) in codes for one in _functions())


def _functions() -> Iterator[type[torch.autograd.Function]]:
    """Yield every ``Function`` there is; those of torch's that the script calls are among them."""
    left: list[type[torch.autograd.Function]] = [torch.autograd.Function]
    while left:
        found = left.pop().__subclasses__()
        left.extend(found)
        yield from found


def _made_by(tensor: Tensor) -> list[str]:
    names: list[str] = []
    node = tensor.grad_fn
    # A bound is the script's own guard: what it was to keep comes behind it.
    while node is not None and len(names) < _NODES * (1 + any(name.startswith("Clamp") for name in names)):
        names.append(_OFF_CONSTANT if _is_off_constant(node) else node.name())
        node = next((before for before, _ in node.next_functions if before is not None), None)
    return names


def _is_off_constant(node: Any) -> bool:
    """Whether it takes something off what no gradient goes back to, as ``1 - x`` does."""
    before = node.next_functions
    return node.name() == "SubBackward0" and len(before) == _PAIR and before[0][0] is None and before[1][0] is not None


_OFF_CONSTANT = "RsubBackward1"
