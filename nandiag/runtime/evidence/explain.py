"""What the deciding op shows: facts on its tensors, the place in the source, and the same op in float64 (worker)."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Site, TensorFact, words
from nandiag.events.forms import plain
from nandiag.runtime.evidence.around import around
from nandiag.runtime.evidence.graph.weights import OF_POSITIVE
from nandiag.runtime.evidence.op import Op, Spot, given_of
from nandiag.runtime.frames import LIBRARY, USER, Frame, best, columns, source
from nandiag.runtime.guard import sparing
from nandiag.runtime.kernels.unmoded import unmoded
from nandiag.runtime.kernels.written import unsaid
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.memory.overwritten import drawn_from, outs_of
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.packed.nested import tensors_in

_SUM = 2  # as torch counts reductions
_EIGHTHS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, *_EIGHTHS)
_LARGEST = 1 << 27
# Weights of a network that learns are not so large; what has grown that far runs away.
_NO_WEIGHT = 1e15
# A norm has its input, weight and bias before its statistics.
_LOGS, _FEW = frozenset({"log", "log2", "log10"}), 4
_DIVISIONS, _PAIR = frozenset({"div", "true_divide", "divide"}), 2
_SHOWN, _GIVEN, _NODES = 4, 6, 3
_FEWEST_POSITIONS = 2
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_PASSED_OVER = _COMPREHENSIONS | {"<locals>"}


def site_of(spot: Spot, op: str | None) -> Site:
    """Return the place of ``spot``: the user's line, or the library's own where the module itself is a library's."""
    frame = frame_of(spot)
    place = None if frame is None else columns(frame)
    line = None if frame is None else place[0] if place is not None else frame.line
    return Site(
        module=spot.module,
        module_class=spot.module_class,
        op=op,
        node=spot.node,
        forward_op=spot.forward_op,
        file=None if frame is None else frame.file,
        line=line,
        column=None if place is None else (place[1], place[2]),
        function=None if frame is None else _function(frame.code),
        source=None if frame is None or line is None else source(frame, line),
        around=None if frame is None else around(spot.frames[spot.frames.index(frame) :]),
        owner=None if frame is None else _owner(frame.code),
    )


def _function(code: CodeType) -> str:
    """Return the name of the function, of a comprehension that of the one it stands in (before Python 3.11 its own)."""
    if code.co_name not in _COMPREHENSIONS:
        return code.co_name
    parts = [one for one in getattr(code, "co_qualname", code.co_name).split(".") if one not in _PASSED_OVER]
    return parts[-1] if parts else "<module>"


def _owner(code: CodeType) -> str | None:
    """Return the class whose method it is, as the code tells it (from Python 3.11 on)."""
    *outer, _ = getattr(code, "co_qualname", code.co_name).split(".")
    return outer[-1] if outer and outer[-1] != "<locals>" and code.co_name not in _COMPREHENSIONS else None


def frame_of(spot: Spot) -> Frame | None:
    """Return the frame that is shown: the user's, or the library's own where the module itself is a library's."""
    if spot.library and spot.frames and spot.frames[0].kind == LIBRARY:
        return spot.frames[0]
    return best(spot.frames)


def via(spot: Spot) -> str | None:
    """Return ``file:line`` of the library frame that ran the op where the site shows the user's call of it."""
    frame = frame_of(spot)
    inner = spot.frames[0] if spot.frames else None
    if frame is None or inner is None or inner is frame or frame.kind != USER:
        return None
    return f"{inner.file}:{inner.line}" if inner.kind == LIBRARY else None


def round_library(spot: Spot) -> dict[str, str]:
    """Return, as facts, the line of the library's where the site shows the script's, or the other way round."""
    frame, inner = frame_of(spot), via(spot)
    if inner is not None:
        return {"library": inner}
    user = next((one for one in spot.frames if one.kind == USER), None)
    return {"called_at": f"{user.file}:{user.line}"} if user and frame and frame.kind == LIBRARY else {}


def taken_at(spot: Spot) -> dict[str, object]:
    """Return, as a fact, the line that took in what was bad before."""
    frame = frame_of(spot)
    return {} if frame is None else {"taken_at": [frame.file, frame.line]}


def inputs_of(op: Op, name: Callable[[Tensor], str | None] = lambda _: None) -> tuple[TensorFact, ...]:
    """Return facts on the tensors that went into the op, as they were before it, with the ``name`` of each."""
    if op.words is None:
        return op.told[0][:_GIVEN]
    return tuple(fact(tensor, name(tensor)) for tensor in given_of(op)[:_GIVEN])


def overgrown(op: Op, name: Callable[[Tensor], str | None]) -> tuple[Tensor, TensorFact] | None:
    """Return the largest weight or buffer that went into the op and is larger than any that is meant, with its facts.

    What is below zero throughout is a mask, as a rule.
    """
    facts = [(one, fact(one, told)) for told, one in named_inputs(op, name)]
    large = [(one, seen) for one, seen in facts if not seen.bad and (seen.max or 0.0) > 0.0]
    most = max(large, key=lambda pair: pair[1].absmax or 0.0, default=None)
    return most if most is not None and (most[1].absmax or 0.0) > _NO_WEIGHT else None


def named_inputs(op: Op, name: Callable[[Tensor], str | None]) -> list[tuple[str, Tensor]]:
    """Return the weights and buffers that went into the op, by name."""
    return [(told, one) for one in given_of(op)[:_GIVEN] if (told := name(one)) is not None]


def _whole_numbers(op: Op) -> dict[str, object]:
    """Return whether a logarithm was given whole numbers from 0 on that no gradient leads back to, as counts are."""
    given = given_of(op)
    if words.op(str(op.func)).rstrip("_") not in _LOGS or len(given) != 1 or given[0].requires_grad:
        return {}
    (data,) = given
    if data.numel() < _FEW or not data.is_floating_point() or data.is_sparse or not all_there(given):
        return {}
    whole = bool((data == data.round()).all()) and float(data.min()) == 0.0 and float(data.max()) > 1.0
    return {"whole": True} if whole else {}


def outputs_of(op: Op, name: Callable[[Tensor], str | None] = lambda _: None) -> tuple[TensorFact, ...]:
    """Return facts on what came out of the op, else on what it wrote besides, a norm's statistics, by ``name``."""
    few = 1 if words.op(str(op.func)) in _WITH_WORKSPACE else _SHOWN
    if not op.results:
        return op.told[1][:few]
    bad = [fact(one) for one in op.results[:few] if is_bad(one)]
    besides = [] if bad or few < _SHOWN else [fact(one, name(one)) for one in op.results[few:] if is_bad(one)][:few]
    return tuple(bad or besides or map(fact, op.results[:1]))


# What they return besides is for their gradient alone, -inf and memory that nobody wrote among it.
_WITH_WORKSPACE = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "_use_cudnn_ctc_loss"})


@sparing
def upside_down(op: Op) -> dict[str, object]:
    """Tell whether a mask that went into attention leaves to each position just what a causal mask takes from it."""
    if not any(part in str(op.func) for part in ("softmax", "attention")):
        return {}
    return {"upside_down": True} if any(map(_hides_the_past, given_of(op))) else {}


def _hides_the_past(scores: Tensor) -> bool:
    size = scores.shape[-1] if scores.dim() > 1 else 0
    if size < _FEWEST_POSITIONS or size != scores.shape[-2] or not scores.is_floating_point():
        return False
    masked = scores.detach() == -torch.inf
    return bool((masked == torch.ones(size, size, dtype=torch.bool, device=scores.device).tril()).all())


@sparing
def vanished_at(op: Op) -> dict[str, object]:
    """Return where the exponential stands of whose zeros both sides of a division are made, and of what it is 0."""
    if op.vanished is None:
        return {}
    frame = frame_of(op.vanished.op.spot)
    at = [] if frame is None else [frame.file, frame.line]
    return {"vanished": op.vanished.exponent, "vanished_at": at}


@sparing
def lost_on_the_way(op: Op) -> dict[str, object]:
    """Return which op lost the digits by which this one broke, the first of them, and where it stands.

    Of a root or a logarithm it is told as well that none were lost.
    """
    if not op.lost:
        return {"lost": {}} if words.op(str(op.func)).rstrip("_") in OF_POSITIVE | {"pow"} else {}
    first = op.lost[0]
    site = plain(site_of(first.op.spot, str(first.op.func)))
    others = [frame.line for one in op.lost[1:] if (frame := frame_of(one.op.spot)) is not None]
    told = {"how": first.how, "dtype": first.dtype, **first.numbers, "site": site}
    return {"lost": {**told, **({"lines": sorted({*others} - {site["line"]})} if others else {})}}


@sparing
def in_float64(op: Op) -> dict[str, object]:
    """Run the op again on the same inputs in float64: finite there means that the dtype's range was left.

    Not an op of others (``torch.library.custom_op``): that is code of the script's, of which it may keep count.
    """
    if getattr(op.func, "namespace", "") != "aten":
        return {}
    given = tensors_in((op.words[0], list(op.words[1].values()))) if op.words is not None else []
    if op.words is None or not given or sum(tensor.numel() for tensor in given) > _LARGEST or not all_there(given):
        return {}
    if drawn_from(op.func, *op.words):
        return {}  # it would move on once more what the script's next step drops by
    try:
        with torch.no_grad():
            named = {key: _wide(word) for key, word in op.words[1].items()}
            wider = _wide(op.words[0])
            output = tensors_in(unmoded(op.func)(*wider, **named)) or outs_of(op.func, named)
            output += unsaid(op.func, wider)
    except (RuntimeError, NotImplementedError, TypeError):
        return {}
    wide = [fact(tensor) for tensor in output if tensor.is_floating_point()]
    if not wide:
        return {}
    facts: dict[str, object] = {"float64_finite": not any(one.bad for one in wide)}
    largest = max((one.absmax for one in wide if one.absmax is not None), default=None)
    if largest is not None:
        facts["float64_absmax"] = largest
    made: list[Any] = [one.dtype for one in op.results] or [getattr(torch, one.dtype, None) for one in op.told[1]]
    narrow = next((dtype for dtype in made if dtype in _FLOATS), None)
    if narrow is not None:
        facts["dtype"] = str(narrow).removeprefix("torch.")
        facts["dtype_max"] = torch.finfo(narrow).max
    return facts


def _wide(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        own = thing.dtype in (*_FLOATS, torch.float64)  # what the op writes into stays as it is
        return thing.detach().to(torch.float64, copy=True) if own else thing.detach()
    if isinstance(thing, torch.dtype):
        return torch.float64 if thing in _FLOATS else thing
    if type(thing) in (tuple, list):
        return type(thing)(_wide(item) for item in thing)
    return thing


@sparing
def scalars_of(op: Op) -> dict[str, object]:
    """Return the numbers among the op's arguments, by position or name, and what is told of a logarithm's."""
    if op.words is None:
        return {}
    numbers = {f"arg{index}": word for index, word in enumerate(op.words[0]) if type(word) in (int, float, bool)}
    numbers |= {key: word for key, word in op.words[1].items() if type(word) in (int, float, bool)}
    beside = {"bad_elsewhere": True} if op.elsewhere and op.born else {}
    return {**numbers, **_whole_numbers(op), **beside}
