"""What a call refused though all of it is finite: a matrix without such factors, an argument out of range (worker).

No value is bad, and so nothing is run again: the frames of the error hold what was refused, the text of the script says
what that was made of.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.evidence.around.place import place_of
from nandiag.runtime.frames import Frame
from nandiag.runtime.kernels.diagonals import on_diagonal
from nandiag.runtime.leaves import BUILT_IN
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.watch.told.nothing import called, frames_of, held, is_exponential, line_of, set_to

_REFUSED: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_FACTORS = frozenset({"cholesky", "cholesky_ex", "cholesky_inverse"})
_OTHERS = frozenset({"inv", "inverse", "solve", "solve_ex", "inv_ex", "lu_factor"})
_LARGEST, _MOST_MATRICES = 512, 1024
_CLEAR = 1e-5  # a least eigenvalue above this share of the largest one is none that a factorisation fails by


def refused_matrix(error: BaseException, given: Sequence[Tensor]) -> dict[str, object] | None:
    """Return what is known of a finite square matrix that linear algebra refused; None where it was something else.

    ``given``: what the call was handed, as far as it was seen.
    """
    frames = list(frames_of(error)) if isinstance(error, _REFUSED) else []
    call = _call_of(frames[0][1]) if frames else None
    if call is None:
        return None
    live, frame = frames[0]
    name, factor = _first(call), called(call) in _FACTORS
    own = held(live, name)
    tensor = next((one for one in [*given, own] if _is_square(one)), None)
    # A library may have made another matrix of what the script's line gives it.
    if tensor is None or not (factor or called(call) in _OTHERS) or _is_of_module(own):
        return None
    seen = _spectrum(tensor, factor=factor)
    named = {"name": name} if isinstance(own, Tensor) and own.shape == tensor.shape else {}
    known = {"call": called(call), **_learnt(live, tensor if factor else None)}
    return None if seen is None else {**line_of(frame), **named, **known, **seen}


def _learnt(live: FrameType, tensor: Tensor | None) -> dict[str, object]:
    """Return the weight below 0 that the script adds to the diagonal, as the function of ``live`` calls it."""
    weight = None if tensor is None else on_diagonal(tensor)
    if weight is None:
        return {}
    for name, thing in tuple(live.f_locals.items()):
        own = [(name, thing), *((f"{name}.{of}", one) for of, one in _weights(thing))]
        told = next((text for text, one in own if one is weight.tensor), None)
        if told is not None:
            return weight.told(told)
    return {}


def _weights(thing: Any) -> Iterable[tuple[str, Tensor]]:
    return torch.nn.Module.named_parameters(thing) if isinstance(thing, torch.nn.Module) else ()


def refused_argument(error: BaseException) -> dict[str, object] | None:
    """Return what is known of an argument that one of torch's distributions refused; None where it was none."""
    frames = list(frames_of(error)) if isinstance(error, ValueError) else []
    checked = _checked(error) if frames else None
    if checked is None:
        return None
    law, param, value, valid, constraint = checked
    if type(value) not in BUILT_IN or type(valid) not in BUILT_IN or is_bad(value):
        return None
    constraint = getattr(constraint, "base_constraint", constraint)
    valid = constraint.check(value) if valid.shape != value.shape else valid
    if valid.shape != value.shape or _is_of_another_law(law, frames[0][1]):
        return None  # torch's own words say as much
    wrong = value.detach()[~valid]
    facts: dict[str, object] = {"param": param, "law": type(law).__name__, "constraint": str(constraint)}
    facts |= {"invalid": int((~valid).sum()), "of": valid.numel(), "zeros": int((wrong == 0).sum())}
    facts |= {"least": float(wrong.min()), "most": float(wrong.max())} if wrong.numel() else {}
    return {**line_of(frames[0][1]), **facts, **_text_of(law, param, *frames[0])}


def _call_of(frame: Frame) -> ast.Call | None:
    place = place_of(frame)
    node = place.nodes[-1] if place is not None else None
    return node if isinstance(node, ast.Call) else None


def _first(call: ast.Call) -> str | None:
    """Return the text of what a function is given first, or of what a method is called on."""
    given = call.args[0] if call.args else next((one.value for one in call.keywords if one.arg in {"input", "A"}), None)
    if given is not None:
        return ast.unparse(given)
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else None


def _is_of_module(thing: Any) -> bool:
    return type(thing) is type(torch)


def _is_of_another_law(law: Any, frame: Frame) -> bool:
    """Whether the script asks for another distribution, which makes this one of its own arguments."""
    call = _call_of(frame)
    name = "" if call is None else called(call)
    return name != type(law).__name__ and hasattr(torch.distributions, name)


def _is_square(tensor: Any) -> bool:
    if type(tensor) not in BUILT_IN or not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.numel():
        return False
    return tensor.shape[-1] == tensor.shape[-2] <= _LARGEST and not is_bad(tensor)


def _spectrum(tensor: Tensor, *, factor: bool) -> dict[str, object] | None:
    """Return between what the eigenvalues of the worst of the matrices lie (``factor``), or its singular values."""
    if tensor.shape[:-2].numel() > _MOST_MATRICES:
        return None
    many = tensor.detach().reshape(-1, *tensor.shape[-2:]).to("cpu", torch.float64)
    values = torch.linalg.eigvalsh((many + many.mT) / 2) if factor else torch.linalg.svdvals(many).flip(-1)
    worst = int(values[:, 0].argmin())
    one, least, largest = many[worst], float(values[worst, 0]), float(values[worst].abs().max())
    if least > _CLEAR * largest:
        return None
    facts: dict[str, object] = {"size": len(one), "dtype": str(tensor.dtype).removeprefix("torch."), "of": len(many)}
    facts |= {"index": worst, "least": least, "largest": largest}
    apart = float((one - one.mT).abs().max())
    return {**facts, **_equal_rows(one), "turned": factor and apart > 1e-3 * max(largest, math.ulp(0.0))}


def _equal_rows(matrix: Tensor) -> dict[str, object]:
    """Return which two rows are the same, the first such."""
    _, same, count = matrix.unique(dim=0, return_inverse=True, return_counts=True)
    if len(count) == len(matrix):
        return {}
    group = same[(count[same] > 1).nonzero()[0, 0]]
    return {"rows": (same == group).nonzero().view(-1)[:2].tolist()}


def _checked(error: BaseException) -> tuple[Any, str, Any, Any, Any] | None:
    """Return the distribution, its parameter, value, what of that is valid and the constraint, from torch's frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    live: FrameType | None = None if trace is None else trace.tb_frame
    if live is None or live.f_globals.get("__name__") != "torch.distributions.distribution":
        return None
    found = [live.f_locals.get(name) for name in ("self", "param", "value", "valid", "constraint")]
    law, param, value, valid, constraint = found
    return (law, param, value, valid, constraint) if isinstance(param, str) and constraint is not None else None


def _text_of(law: Any, param: str, live: FrameType, frame: Frame) -> dict[str, object]:
    """Return how the script writes the argument, and whether it is an exponential."""
    call = _call_of(frame)
    if call is None or called(call) != type(law).__name__:
        return {}
    node = _argument(call, param, list(inspect.signature(type(law).__init__).parameters)[1:])
    if node is None:
        return {}
    name = ast.unparse(node)
    if isinstance(node, ast.Name) and not isinstance(held(live, name), Tensor):
        return {}  # a number
    made = list(set_to(frame, name)) if isinstance(node, ast.Name) else []
    text, at = (made[0][0], {"made": made[0][0], "made_at": list(made[0][1:])}) if len(made) == 1 else (name, {})
    return {"name": name, **at, "small": is_exponential(ast.parse(text, mode="eval").body)}


def _argument(call: ast.Call, param: str, names: Iterable[str]) -> ast.expr | None:
    word = next((one.value for one in call.keywords if one.arg == param), None)
    place = dict(zip(names, call.args, strict=False))
    return word if word is not None else place.get(param)
