"""No cause is known: what can be said all the same, and where to look (reader side)."""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import Cause, Facts, is_again, is_whole
from nandiag.analysis.causes.mends import states
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import Looked, words

EXPLAIN = Explanation(
    slug="unknown",
    what="Nothing that was recorded explains how the bad value came about. The report still names rank, step and "
    "place as far as they were seen, and says where to look.",
    looks=(
        "error: NaN gradients on ranks 0-1 at step 9; which rank made them is not known",
        "When ranks 0-1 ran the step again it was finite: the fault did not show a second time.",
    ),
    fix=(
        Suggestion(
            "Look at the place that the report names, and at its notes: they say what could not be seen, and why.",
        ),
        Suggestion(
            "Let the run go on to a step that can be run again.",
            "nandiag run --on-anomaly continue --max-replays 10 train.py",
        ),
        Suggestion(
            "Where it did not show a second time, run it again with the same seed: another rank or step each time "
            "points at a race or at hardware.",
        ),
    ),
    pages=(
        "autograd.html",
        "notes/randomness.html",
    ),
)

_PLACES = {
    "loss": "Look at the model, and at the code between it and backward(): log, division, sqrt, exp, an empty mean.",
    "gradient": (
        "Look for functions whose gradient is infinite at a finite value (sqrt or norm at 0, a division behind "
        "torch.where), and for values beyond the range of the dtype."
    ),
    "exchange": "Look at how gradients are exchanged: the dtype, what is divided by what, and in which order.",
    "state": "Look at what changed these weights: the optimizer's settings, and code that writes to them by itself.",
    "look": "Look at the values that went into this place; nothing that was recorded explains the result.",
}
_ZEROS = (
    "All gradients that the {} was given were 0: what divides by their norm, or their largest, makes NaN of that. Add "
    "a small number to the divisor."
)
_BUFFER = (
    "Look at what writes to this buffer, which no optimizer does: running means and counts take in what a batch holds, "
    "an empty one too."
)
_UNSEEN = (
    "It was bad before it was first used here, and no op of torch's was seen to make it so: look at what fills it."
)
_OUTSIDE = "It was bad before it was first used here: look at the code that made it, which was not run again."
_UNSAID = "Look at what {} writes beside what it returns, in this step or before, and else at the code that made this."
_LEFT = "Look at this line, and at what goes into it: one of the two made it, and nothing of that was run again."
_IN_PLACE = "Look at this line: it writes the values in place, and what it writes is not finite."
_PASSED_ON = (
    "Look at this line, and at what it writes into: it writes the values in place, and what was there before was not "
    "kept. That may have been bad already."
)
_LAST = "Look at this line: it was the last seen to write into these values; what it wrote then is gone, and not known."
_HANDED = "Look at what the other ranks hand to this one: here it was used first, and it came bad."
_PUT = "look at what put it there, such as a mask or another constant that the script writes."
_LOSS_CODE = "Look at the code between the model's outputs and backward(): log, division, sqrt, exp, an empty mean."
_STEPPED = (
    "Look at the settings of {0}, and at what its closure gives it to go on from: a loss that is NaN or infinite, or "
    "gradients that are not those of that loss (left out, or left at 0)."
)
_MODULE = "Look at what this module computes: its inputs were finite."
_ONCE = (
    "It did not show a second time: look at state that changed in between, a race, memory that nobody wrote, or the "
    "hardware. Is it always the same host and device?"
)
_BEGINS = " A running minimum or maximum begins so: let it take in a value before it is used, also behind a reset."
_BY_METHOD = {"watch": _UNSEEN, "tape": _LEFT}
_PARTLY = (
    "Look at the script's own code around the step: not all of it could be run again, and what could be was finite."
)
_GRAPH = (
    "Run the script without the CUDA graph: call what is captured as it is, at each step. Then the line that makes it "
    "is seen."
)
_ALIKE = (
    "If each rank asks by itself for Inf or NaN, let it ask behind the exchange, or share the answer: all ranks leave "
    "the update out, or none does."
)
_SHARED = "bad = torch.tensor(float(bad), device=gradient.device)\ndist.all_reduce(bad, op=dist.ReduceOp.MAX)"
LIVE = Suggestion("Or have every op watched as it runs, from the first line on.", "nandiag run --level op")


def explain(facts: Facts) -> Cause | None:
    """Say where to look, by what was seen."""
    written = _written(facts)
    if written is not None:
        told = Suggestion(f"This line writes {written}: look at why it does, and at what reads it afterwards.")
        return Cause("unknown", (f"this line writes {written}",), (told,), strength=0)
    grown = states.overgrown(facts)
    if grown is not None:
        return Cause("unknown", _used(facts), (grown,), strength=0)
    place = _place(facts)
    if place is None:
        return None
    watched = facts.look is not None and facts.look.method == "watch"
    asks = not watched and place is not _GRAPH and (place is _PARTLY or _by_update(facts) or _not_run_again(facts))
    live = (LIVE,) if asks else ()
    if facts.basis == "exchange" and facts.silent:
        alike = Suggestion(_ALIKE, _SHARED), Suggestion(f"Or l{place[1:]}"), *live
        return Cause("unknown", _used(facts), alike, strength=0)
    return Cause("unknown", (*_used(facts), *_bad_numbers(facts)), (Suggestion(place), *live), strength=0)


def _not_run_again(facts: Facts) -> bool:
    """Whether the step could not be run again, or what made the bad values was not: an update came out finite."""
    known = () if facts.look is None else (facts.look.outcome,)
    return facts.source == "outside" or not {"failed", "refused", *_of_update(facts)}.isdisjoint(known)


def _of_update(facts: Facts) -> tuple[str, ...]:
    return ("finite",) if facts.basis == "state" else ()


def _by_update(facts: Facts) -> bool:
    """Whether an update left a weight bad, and only the line that used it first was seen."""
    return facts.source in {"parameter", "buffer"} and facts.origin.phase == "optimizer"


def _used(facts: Facts) -> tuple[str, ...]:
    """Return, to stand beside a line that is not at fault, what it was given."""
    bad = facts.bad_state
    if (kind := facts.extra.get("between_evaluations")) is not None:
        return (f"{kind} wrote it within this step: at an evaluation of its closure it was finite",)
    return (f"not at fault: {bad.name} was bad before",) if bad is not None and bad.name and _by_update(facts) else ()


def _updates(facts: Facts) -> str:
    name = facts.bad_state.name if facts.bad_state is not None else None
    if facts.harm is not None and facts.harm.behind and facts.harm.replays:
        return _GRAPH
    if facts.harm is not None and facts.harm.behind:
        return f"Look at what the script does behind its last update that writes into {name or 'these weights'}."
    optimizer = facts.harm.optimizer if facts.harm is not None else None
    if (kind := facts.extra.get("between_evaluations")) is not None:
        return _STEPPED.format(kind)
    if optimizer is None:
        return (
            f"Look at the lines that update {name or 'it'} after backward(): a division (by the norm of a gradient "
            "that is zero), a root, a step size."
        )
    return f"Look at what updates {name or 'it'} after backward(): {optimizer}'s settings, and code that writes to it."


def _place(facts: Facts) -> str | None:
    look = facts.look
    if _by_update(facts):
        return _updates(facts)
    if facts.basis in {"loss", "gradient"} and look is not None and is_again(look):
        return _behind(look, facts.basis)
    if facts.source == "module":
        return _MODULE
    if "written_in_place" in facts.extra:
        return _LAST if look is not None and look.method == "tape" else _in_place(facts)
    came = words.bad_kind(facts.origin.inputs) if facts.source == "op" and facts.outputs_nan else None
    if came is not None and "NaN" not in came:
        return f"{came} went into {facts.op or 'this op'}, and NaN came out: {_PUT}"
    return _outside(facts) if facts.source == "outside" else _number(facts) or _by_basis(facts)


def _in_place(facts: Facts) -> str:
    """A write that reads what was there, as ``add_`` does, makes nothing bad finite."""
    return _PASSED_ON if facts.source == "input" and facts.extra["written_in_place"] in _READING else _IN_PLACE


_READING = frozenset({
    "add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "__iadd__", "__isub__", "__imul__", "__itruediv__",
    "clamp_", "clip_", "exp_", "log_", "sqrt_", "pow_",
})  # fmt: skip


def _by_basis(facts: Facts) -> str | None:
    state = facts.basis == "state" and facts.harm is not None
    if state and facts.harm is not None and facts.harm.behind:
        return _updates(facts)
    buffer = state and facts.harm is not None and facts.harm.what == "buffer"
    if facts.basis == "loss" and facts.look is not None and facts.look.source == "received":
        return _HANDED
    if facts.basis == "exchange" and facts.exchanged and not any(facts.exchanged.values()):
        return _of_zeros({} if facts.look is None else facts.look.facts)
    return _BUFFER if buffer else _PLACES.get(facts.basis)


def _of_zeros(known: dict[str, object]) -> str:
    at = known.get("hook_at")
    hook = f"hook ({words.place(at)})" if isinstance(at, list) and len(at) == len(("f", "l")) else "hook"
    return _ZEROS.format(hook if known.get("by") == "comm_hook" else "exchange")


def _outside(facts: Facts) -> str:
    name = facts.extra.get("script_name")
    if name:
        return f"{name} was bad before this line used it: look at {_set(facts, name)}."
    if isinstance(unsaid := facts.extra.get("unsaid"), list) and unsaid:
        return _UNSAID.format(", ".join(map(str, unsaid)))
    return _BY_METHOD.get(facts.look.method if facts.look is not None else "", _OUTSIDE)


def _set(facts: Facts, name: object) -> str:
    """Return where the file sets what the script calls so."""
    lines = facts.written(str(name))
    return f"where it is set, {words.lines(lines)}" if lines else "where it is set"


def _number(facts: Facts) -> str | None:
    if not _bad_numbers(facts) or not facts.finite_inputs:
        return None
    name = facts.extra.get("script_name")
    if name:
        bad = words.number(facts.bad_numbers[0])
        return f"{name} is {bad}: look at {_set(facts, name)}. Torch was given it as it is."
    name = _operand(facts)
    if name is not None:
        value = facts.bad_numbers[0]
        begins = "" if math.isnan(value) else _BEGINS
        return f"{name} is {words.number(value)}: look at {_set(facts, name)}.{begins}"
    return f"Look at what makes the number that goes into {facts.op or 'the op'}: torch was given it as it is."


def _operand(facts: Facts) -> str | None:
    """Return what the script calls the number that is subtracted, or divided by, or that this is done to."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    side = _SIDES.get(facts.op or "")
    if not isinstance(node, ast.BinOp) or side is None or len(facts.origin.inputs) != 1:
        return None
    number = node.right if side == "right" else node.left
    return ast.unparse(number) if isinstance(number, ast.Name | ast.Attribute) else None


# Where the number stands of these, which take one tensor and one number.
_SIDES = {"sub": "right", "div": "right", "rsub": "left"}


def _behind(look: Looked, basis: str) -> str:
    """Say where to look behind a look that found all finite."""
    if look.method == "replay":
        return _ONCE if is_whole(look) else _PARTLY
    return _LOSS_CODE if basis == "loss" else _PLACES[basis]


def _written(facts: Facts) -> str | None:
    """Return ``NaN`` or ``+Inf`` where the op only lays a number that is not finite into a tensor."""
    name = facts.origin.op if facts.source == "op" else None
    return None if name is None else words.laid(name, facts.origin.inputs, facts.extra)


def _bad_numbers(facts: Facts) -> tuple[str, ...]:
    """Return a sentence on a number among the op's arguments that is not finite itself."""
    bad = facts.bad_numbers
    name = _operand(facts) if len(bad) == 1 else None
    told = f"{name}, which" if name is not None else "a number that"
    return (f"{told} {facts.op or 'the op'} was given{',' if name else ''} is {words.number(bad[0])}",) if bad else ()
